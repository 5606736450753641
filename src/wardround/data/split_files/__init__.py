"""A partition on disk: a file for each site, and a manifest that says what they are and lets a change be seen."""
