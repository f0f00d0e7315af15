"""The paper's evaluation reproduced in virtual time: one module per table or figure, and one command for all."""
