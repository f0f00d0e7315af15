"""The bus: connection, encoding, subjects, pull consumers."""
