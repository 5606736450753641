"""Why models say so, in the report."""
