"""Files made from the code: `python -m dilaserve.reference` writes the reference pages and the Grafana dashboard."""
