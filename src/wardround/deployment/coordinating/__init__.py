"""What every coordinator does, whatever its sites stand for."""
