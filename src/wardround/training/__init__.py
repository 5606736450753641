"""Training: one local loop, one round function, and the trial that they run."""
