"""Load on a live gateway: requests and arrival times, sending, and results."""
