"""Load on a live gateway: what to send and when, sending it, and what came of it."""
