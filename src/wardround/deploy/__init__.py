"""A study across hospitals: everything of it that does not know Flower."""
