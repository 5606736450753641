"""Who took part in which rounds, and how long they took."""
