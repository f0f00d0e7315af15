"""Admission control: API keys, rate limits, concurrency limits, SLO feasibility."""
