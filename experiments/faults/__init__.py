"""Breaks a system under load: one table of faults, one load, and one account of the requests."""
