"""The REST face of a cell: OpenAI's API in, requests on the bus out, committed text back."""
