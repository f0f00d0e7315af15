"""The worker: runs the model for one instance."""
