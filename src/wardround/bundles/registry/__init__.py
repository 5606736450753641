"""A registry: a folder of bundles with versions, one of each name in use."""
