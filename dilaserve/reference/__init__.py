"""Reference pages made from the code: `python -m dilaserve.reference` writes them into docs/."""
