"""Time and memory, ours beside hand-written loops and peers, on the same work in one run: `make bench`."""
