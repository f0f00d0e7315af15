"""Measures the quality of replies: the paper's benchmarks and its LLM judge."""
