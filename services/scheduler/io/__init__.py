"""The scheduler's connections to the bus: consumers, the lease, the predictor client, the outcome store."""
