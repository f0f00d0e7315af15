"""Generates reference pages from the code: `python -m dilaserve.reference`."""
