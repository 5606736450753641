"""What a study computes exactly: how each kind of analysis is told."""
