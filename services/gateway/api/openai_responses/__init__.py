"""OpenAI's Responses API, for text: its body and its replies."""
