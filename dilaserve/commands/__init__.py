"""One module a command: its function bears the module's name. Heavy packages are imported inside the function."""
