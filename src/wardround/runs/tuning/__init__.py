"""[tuning] in a run: trials in waves, and what they showed."""
