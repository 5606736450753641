"""Algorithms for fairness between hospitals: weights that follow losses, and a model of its own for each."""
