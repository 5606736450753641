"""Secure aggregation: the coordinator learns the sum of the updates and no single one."""
