"""Kits of coordinator, regions and sites: keys, certificates, and the files that go with them."""
