"""The scheduler's statistics, Prometheus metrics and traces."""
