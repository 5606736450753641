"""A hospital that is new: its own adapter into a shared part that is trained already, and what it gains by it."""
