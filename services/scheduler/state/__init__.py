"""The scheduler core's state: requests, instances, estimates, steps in flight."""
