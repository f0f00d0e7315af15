"""A cluster in virtual time: the scheduler's own core, with instances, model and step predictor simulated."""
