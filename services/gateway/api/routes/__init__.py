"""The paths that clients ask for, by topic."""
