"""Verbs about studies across hospitals: provision, approve, coordinate, join."""
