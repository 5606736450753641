"""Numbers from saved predictions. Nothing here trains, and nothing is chosen on test rows."""
