"""How sure a model is: passes with dropout, ensembles, Laplace; their parts; calibration, prediction sets, referral."""
