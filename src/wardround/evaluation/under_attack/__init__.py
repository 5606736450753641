"""Studies with simulated adversaries: figures at honest sites, damage, backdoors."""
