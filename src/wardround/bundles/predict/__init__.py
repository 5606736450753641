"""Predictions of a bundle, from files, images, tables in memory and single rows."""
