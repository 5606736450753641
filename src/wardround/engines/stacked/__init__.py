"""The fast engine: many sites and trials as one tensor program."""
