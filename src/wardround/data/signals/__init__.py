"""Signals: recordings of several channels over time, with gaps and of unequal lengths."""
