"""The policies' algorithms as pure functions: those of the paper, and those of the default policy."""
