"""The web console: its static files and the cluster state that it shows."""
