"""Differential privacy: clipping, noise, and accounting."""
