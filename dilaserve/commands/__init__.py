"""One module per command: its function has the module's name. Heavy packages are imported inside the function."""
