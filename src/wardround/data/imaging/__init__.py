"""Radiographs as files: tables that say what is in them, decoding, and a cache of what was decoded."""
