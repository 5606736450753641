"""What a finished run is to Python and to a notebook."""
