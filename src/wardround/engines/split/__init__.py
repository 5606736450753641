"""Split learning in one process."""
