"""The command line. Each verb is a file; each collects data and hands it to `render`, or prints it as JSON."""
