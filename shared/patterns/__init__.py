"""Patterns that a text must match: regular expressions as automata over bytes."""
