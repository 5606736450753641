"""Published figures beside ours, with a verdict for each."""
