"""A site's end of a deployment, whatever the topology: the loop that answers, and what a run's session is."""
