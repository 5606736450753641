"""A run: its plan, how it is executed, and its folder."""
