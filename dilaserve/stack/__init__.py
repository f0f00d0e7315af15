"""The embedded stack: NATS, Postgres and every service as processes of one machine, kept running."""
