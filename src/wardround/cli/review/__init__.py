"""Verbs about a clinician's review."""
