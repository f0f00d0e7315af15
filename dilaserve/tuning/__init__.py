"""Measures a model on this machine and suggests how to serve it."""
