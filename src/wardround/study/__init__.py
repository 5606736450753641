"""The study file: schema, parser, sweeps, and everything that can be refused from its text alone."""
