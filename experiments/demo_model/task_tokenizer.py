"""The tokenizer of the block-causal demo model: words and numbers of its problems, pieces of JSON and tool calls."""

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random

from tokenizers import AddedToken, Tokenizer

from experiments.demo_model.arithmetic import FULL
from experiments.demo_model.chat import CALL, CALL_END, TEMPLATE, TOOL, TOOLS
from experiments.demo_model.tasks import draw_task
from experiments.demo_model.tokenizer import (
    ASSISTANT,
    CORPUS_SIZE,
    EOS,
    MASK,
    SYSTEM,
    USER,
    common_texts,
    save_tokenizer,
    train_tokenizer,
)

TURNS = (USER, ASSISTANT, SYSTEM, TOOLS, TOOL)
VOCAB_SIZE = 1_792  # at most


def build_task_tokenizer(seed: int) -> Tokenizer:
    """Train the tokenizer on generated tasks of the training set; the same seed gives the same tokenizer.

    The marks of a tool call are no special tokens: a client must see them.
    """
    added = [AddedToken(text, special=True, normalized=False) for text in (MASK, EOS, *TURNS, CALL, CALL_END)]
    trained = json.loads(train_tokenizer(_corpus(seed), VOCAB_SIZE, added).to_str())
    for token in trained["added_tokens"]:  # the trainer makes all of them special
        token["special"] = token["content"] not in (CALL, CALL_END)
    return Tokenizer.from_str(json.dumps(trained))


def save_task_tokenizer(tokenizer: Tokenizer, directory: Path, max_length: int) -> None:
    """Write the tokenizer with its chat template. Units: tokens."""
    save_tokenizer(tokenizer, directory, max_length, TEMPLATE, TURNS)


def _corpus(seed: int) -> Iterator[str]:
    """Tasks, without the marks of turns, and what every corpus needs."""
    rng = Random(f"task tokenizer {seed}")
    for _ in range(CORPUS_SIZE):
        for text in draw_task(FULL, rng):
            for mark in (EOS, *TURNS, CALL, CALL_END):
                text = text.replace(mark, "\n")  # noqa: PLW2901 - as the tokenizer splits it
            yield from text.split("\n")
    yield from common_texts()
