"""The HTTP routes, by path."""
