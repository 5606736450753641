"""Summaries that a site sends instead of predictions, and how the coordinator merges them."""
