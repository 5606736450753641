"""What keeps patients out of what leaves a hospital: differential privacy with its accounting, and secure sums."""
