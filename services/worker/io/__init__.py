"""The worker's registration on the bus."""
