"""Generalized linear models from sums: estimates, standard errors and tests as if all rows were at one place."""
