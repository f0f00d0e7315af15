"""Arranges examples in training batches and draws the masks of each row.

Every batch is a pure function of (seed, step), so a resumed training sees the same batches as an uninterrupted one. A
row is prompt, answer, then EOS up to the row's end. Rows of about the same length share a batch, and their outputs are
extended to the longest row: no padding has to be excluded from the attention.

Shape letters: B rows, L tokens of a row, O tokens of one row's output.
"""

from dataclasses import dataclass
from functools import partial
from random import Random

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from experiments.demo_model.examples import DrawLength, DrawText, Example, draw_examples, output_length, problem_text
from experiments.demo_model.tokenizer import EOS, MASK, number_tokens, token_of

POOL_BATCHES = 32  # batches that are drawn and sorted by length together
EOS_WEIGHT = 0.1  # weight in the loss of each EOS after the first
BLOCKWISE_SHARE = 0.6  # of the rows: masked as in block by block decoding
BLOCK_LENGTHS = (32, 16, 64)
BLOCK_SHARES = (0.8, 0.1, 0.1)
LATE_NUMBERS_SHARE = 0.35  # of the rows: numbers stay masked longer than words

Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class TrainingBatch:
    """One training batch. Shapes: [B, L] each; weights are zero for tokens outside the loss."""

    tokens: NDArray[np.int64]  # nothing masked
    masked: Flags
    weights: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class FedRows:
    """The decoder's input and targets of one batch. Shapes: [B, L] each, allowed [B, L, L]."""

    inputs: NDArray[np.int64]  # with masks
    targets: NDArray[np.int64]
    weights: NDArray[np.float32]
    positions: NDArray[np.int64] | None = None  # None: from 0 on
    allowed: Flags | None = None  # the keys to which each token attends; None: all


class ExamplePool:
    """Draws the examples of any step of a training, of about one length within each batch."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        seed: int,
        batch_size: int,
        draw_text: DrawText = problem_text,
        draw_length: DrawLength = output_length,
    ) -> None:
        self.tokenizer = tokenizer
        self.seed = seed
        self.batch_size = batch_size
        self._draw = partial(draw_examples, draw_text=draw_text, draw_length=draw_length)
        self._index = -1
        self._batches: list[list[Example]] = []

    def batch(self, step: int) -> list[Example]:
        """The examples of one step, counted from 0."""
        index, offset = divmod(step, POOL_BATCHES)
        if index != self._index:
            self._index, self._batches = index, self._draw_batches(index)
        return self._batches[offset]

    def _draw_batches(self, index: int) -> list[list[Example]]:
        """Draw the examples of POOL_BATCHES batches."""
        rng, size = Random(f"pool {self.seed} {index}"), self.batch_size
        examples = self._draw(self.tokenizer, POOL_BATCHES * size, index * POOL_BATCHES, rng)
        examples.sort(key=lambda example: example.length)
        batches = [examples[at : at + size] for at in range(0, len(examples), size)]
        rng.shuffle(batches)
        return batches


class BatchSource:
    """Draws the batch of any step of a training."""

    def __init__(self, tokenizer: Tokenizer, seed: int, batch_size: int) -> None:
        self.seed = seed
        self.pool = ExamplePool(tokenizer, seed, batch_size)
        self.mask_id, self.eos_id = token_of(tokenizer, MASK), token_of(tokenizer, EOS)
        self.equals_id = tokenizer.token_to_id("=")
        self.is_number = number_flags(tokenizer)

    def rows(self, step: int) -> FedRows:
        """The decoder's input and targets at one step."""
        batch = self.batch(step)
        return FedRows(np.where(batch.masked, self.mask_id, batch.tokens), batch.tokens, batch.weights)

    def batch(self, step: int) -> TrainingBatch:
        """Draw the batch of one step, counted from 0."""
        examples = self.pool.batch(step)
        tokens = self._lay_out(examples)
        rng = np.random.default_rng((self.seed, step))
        masked, weights = (np.zeros(tokens.shape, dtype=np.bool_), np.zeros(tokens.shape, dtype=np.float32))
        for row, example in enumerate(examples):
            output = slice(len(example.prompt), None)
            masked[row, output], weights[row, output] = self._mask(tokens[row, output], example, rng)
        return TrainingBatch(tokens, masked, weights)

    def _lay_out(self, examples: list[Example]) -> NDArray[np.int64]:
        """The rows' tokens, extended with EOS to the longest row. Shapes: -> [B, L]."""
        longest = max(example.length for example in examples)
        tokens = np.full((len(examples), longest), self.eos_id, dtype=np.int64)
        for row, example in enumerate(examples):
            text = example.prompt + example.answer
            tokens[row, : len(text)] = text
        return tokens

    def _mask(
        self, output: NDArray[np.int64], example: Example, rng: np.random.Generator
    ) -> tuple[Flags, NDArray[np.float32]]:
        """Draw the masks of one row and the weights of its loss. Shapes: output [O] -> [O] each."""
        answer_len = len(example.answer)
        if example.drill:
            hidden = mask_drill(output[:answer_len] == self.equals_id, rng)
            hidden = np.pad(hidden, (0, len(output) - answer_len))
            return hidden, hidden.astype(np.float32)
        start, stop = 0, len(output)
        if rng.random() < BLOCKWISE_SHARE:
            block = int(rng.choice(BLOCK_LENGTHS, p=BLOCK_SHARES))
            start = block * int(rng.integers(0, answer_len // block + 1))
            stop = min(start + block, len(output))
        in_loss = np.zeros(len(output), dtype=np.bool_)
        in_loss[start:stop] = mask_text(self.is_number[output[start:stop]], rng)
        weights = in_loss.astype(np.float32)
        weights[answer_len + 1 :] *= EOS_WEIGHT
        hidden = in_loss.copy()
        hidden[stop:] = True  # later blocks are masked while this one is decoded
        return hidden, weights


def number_flags(tokenizer: Tokenizer) -> Flags:
    """Whether each token is a number. Shapes: [V]."""
    flags = np.zeros(tokenizer.get_vocab_size(), dtype=np.bool_)
    flags[list(number_tokens(tokenizer).values())] = True
    return flags


def mask_drill(is_equals: Flags, rng: np.random.Generator) -> Flags:
    """Mask one number of each equation: mostly its result, sometimes an operand. Shapes: [A] -> [A]."""
    equals = np.flatnonzero(is_equals)
    hidden = np.zeros(len(is_equals), dtype=np.bool_)
    hidden[equals + rng.choice((1, -1, -3), p=(0.8, 0.1, 0.1), size=len(equals))] = True
    return hidden


def mask_text(is_number: Flags, rng: np.random.Generator) -> Flags:
    """Mask each token with one probability t drawn from 0 ... 1, at least one token.

    Source: LLaDA's forward process; in some rows numbers are masked with probability sqrt(t), because decoding by
    confidence unmasks them later than words. Shapes: [N] -> [N].
    """
    t = rng.random()
    chance = np.full(len(is_number), t)
    if rng.random() < LATE_NUMBERS_SHARE:
        chance[is_number] = np.sqrt(t)
    hidden = rng.random(len(is_number)) < chance
    hidden[rng.integers(len(is_number))] = True
    return np.asarray(hidden)
