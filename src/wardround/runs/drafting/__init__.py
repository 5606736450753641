"""A first study from hospitals' files: what they hold, what is assumed, and the study file that says so."""
