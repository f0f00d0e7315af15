"""Launchers of instances, one module for each engine; their interface: `launcher.py`."""
