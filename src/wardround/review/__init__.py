"""A clinician's review: reading lists for readers, their decisions scored, and a simulated trial of two bundles."""
