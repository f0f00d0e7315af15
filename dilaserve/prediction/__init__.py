"""Runs requests to train the step predictor from: in this process, without a bus."""
