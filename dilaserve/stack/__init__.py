"""The embedded stack: NATS, Postgres and all services as supervised processes on one machine."""
