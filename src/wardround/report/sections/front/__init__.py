"""What stands before the evidence: a page for a board, and one for each hospital. Both are views of `decision`."""
