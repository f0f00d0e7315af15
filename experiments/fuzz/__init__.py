"""Sends damaged messages and bodies to every entry point. Bad input must be refused, and end no process."""
