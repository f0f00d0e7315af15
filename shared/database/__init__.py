"""Postgres: tables, migrations, and the stores for API keys and latency profiles."""
