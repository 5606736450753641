"""How evenly hospitals and groups of patients are served."""
