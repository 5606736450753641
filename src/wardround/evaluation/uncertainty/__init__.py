"""Whether uncertainty estimates hold, and what they are worth: computed from `uncertainty.parquet`."""
