"""The paper's algorithms as pure functions: thresholds, load control, placement."""
