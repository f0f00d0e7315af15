"""Monitoring: workload statistics stored in and read from Postgres."""
