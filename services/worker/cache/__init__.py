"""The KV cache: entries, stored keys and values, and cache modes."""
