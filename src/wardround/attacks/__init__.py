"""Attacks on what a run gave away, so that a promise of privacy is tested and not only made."""
