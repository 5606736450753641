"""Bad sites in a study: what of [aggregation], [screening] and [[adversaries]] is refused from the text alone."""
