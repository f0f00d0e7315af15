"""Runs requests in this process, without a bus, to train the step predictor."""
