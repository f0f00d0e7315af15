"""The KV cache: slots, stored keys and values, and cache modes."""
