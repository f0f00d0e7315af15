"""The KV cache: its modes, the allocation and eviction of its entries, and the stored keys and values."""
