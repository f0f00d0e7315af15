"""The latency profile: measuring it and storing it."""
