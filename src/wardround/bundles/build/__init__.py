"""Bundles made from a run."""
