"""Verbs about studies and runs: check, run, resume, report, compare."""
