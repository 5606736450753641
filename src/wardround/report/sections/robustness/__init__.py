"""Sites that spoil a model: what was simulated, and what it did."""
