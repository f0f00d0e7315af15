"""The data that the gateway keeps on the bus: files and batches, conversations, Idempotency-Keys."""
