"""The KV cache: the allocation of its entries, the pages of common prefixes, and the stored keys and values."""
