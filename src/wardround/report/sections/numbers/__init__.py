"""Sections about a number that is predicted."""
