"""Bad sites, and what each site adds: what a study says of it, and what is refused from the text alone."""
