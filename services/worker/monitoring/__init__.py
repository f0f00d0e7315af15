"""The worker's Prometheus metrics and traces."""
