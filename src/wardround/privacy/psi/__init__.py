"""Private set intersection: the patients that all parties have, and no other."""
