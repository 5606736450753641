"""Verbs about bundles: make, list, predict, serve, share, adapt."""
