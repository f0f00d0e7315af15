"""Admission control: API keys, rate limits, concurrency limits."""
