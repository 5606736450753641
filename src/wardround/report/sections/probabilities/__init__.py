"""Sections about probabilities: whether they come true, how they rank rows, and what acting on them is worth."""
