"""The paper's evaluation made again in virtual time: a module a table or figure, and one command for all."""
