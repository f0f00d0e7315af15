"""The `dilaserve` command and the embedded stack."""
