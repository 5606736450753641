"""Adapting a trained shared part to a new hospital, and what the hospital gains by it."""
