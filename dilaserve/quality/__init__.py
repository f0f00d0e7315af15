"""How good replies are: the paper's accuracy benchmarks, and its LLM judge."""
