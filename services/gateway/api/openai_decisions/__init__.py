"""OpenAI's Decisions API: typed questions about an input, answered with probabilities."""
