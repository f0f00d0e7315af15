"""Policies compared with constant thresholds at many loads, in virtual time."""
