"""Serves a mixed load for a long time, with a fault a minute, and checks that nothing is lost and nothing leaks."""
