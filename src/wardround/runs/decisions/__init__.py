"""Runs that wait for people: who is held, and what was decided."""
