"""A bundle's predictions over HTTP, for programs on the same machine. Only this package imports FastAPI."""
