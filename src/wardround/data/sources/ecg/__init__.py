"""Synthetic electrocardiograms."""
