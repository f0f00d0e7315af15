"""All messages on the bus. Readers ignore unknown fields; a new field has a default; a new meaning is a new type."""
