"""Who took part: across hospitals, and on a clock."""
