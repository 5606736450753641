"""Sources of signals: WFDB records, arrays, and visits as sequences."""
