"""Arms, sites and parties compared with each other: differences with intervals and verdicts."""
