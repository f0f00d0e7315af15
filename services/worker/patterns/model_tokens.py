"""The vocabulary of a model, for patterns. Apart from the others, as it needs the package transformers."""

from pathlib import Path

from services.worker.patterns.token_automaton import TokenTable
from shared.text import TextModel


def model_tokens(directory: Path, size: int) -> TokenTable:
    """The vocabulary of a model with `size` logits. Raises: BadInput if its tokenizer is not byte-level."""
    text = TextModel(directory, directory.name)
    return TokenTable.of(text.token_bytes(), sorted(text.end_ids), size)
