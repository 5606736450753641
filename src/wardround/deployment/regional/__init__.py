"""Sites that form regions, each with a coordinator of its own."""
