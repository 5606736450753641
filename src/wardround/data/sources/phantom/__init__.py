"""Chest radiographs drawn from formulas, for machines without data."""
