"""Anthropic's Messages API, for text: its bodies, replies and errors."""
