"""Explanations of a bundle's predictions, as columns, files and a page."""
