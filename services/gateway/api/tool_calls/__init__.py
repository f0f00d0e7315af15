"""Calls of tools: their fields, their patterns, and how the families of models write them."""
