"""The models in plain torch; they know nothing of queues, caches or deadlines."""
