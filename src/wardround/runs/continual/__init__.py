"""Training that goes on from a trained model: where it comes from, whether it fits, what it forgets, what it costs."""
