"""Where in an image a model sees what it says: one method a file."""
