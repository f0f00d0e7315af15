"""One module per command: its function has the module's name. Only the command that is
called is imported; packages that not all of its uses need are imported inside its functions."""
