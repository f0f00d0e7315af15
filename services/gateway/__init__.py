"""The REST API of a cell: receives OpenAI requests, publishes them on the bus, returns the committed text."""
