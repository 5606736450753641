"""Table 1: who the patients are, at each hospital and over all."""
