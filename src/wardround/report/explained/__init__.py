"""Importance, effects and coefficients of a model as figures, tables and sentences: in a report and on a page."""
