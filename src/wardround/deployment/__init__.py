"""Studies across hospitals. Only `deployment.flower` imports Flower."""
