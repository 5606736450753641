"""Why the models of a run say what they say: at each hospital, and over all of them."""
