"""Uncertainty of predictions: dropout, ensembles, Laplace; its parts; calibration, prediction sets, referral."""
