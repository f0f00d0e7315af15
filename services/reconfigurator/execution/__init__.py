"""Execution: carrying out a plan through a launcher."""
