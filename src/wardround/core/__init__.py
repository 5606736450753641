"""What every other package may use: errors, settings, seeds, parameter trees, files, processes."""
