"""Applies each fault to a cluster under load, and writes the table of faults in docs/reliability.md."""
