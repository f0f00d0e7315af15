"""Arranges examples for the training of the block-causal demo model.

A row is the text as it is, and after it a masked copy of every block of the output. A block of the copy attends to
itself and to the earlier blocks of the text, as it does when it is decoded; so one forward trains all blocks.
Source: the training of block diffusion models (BD3-LM, SDAR).

Shape letters: B rows, C tokens of the text, N tokens of the copy.
"""

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from experiments.demo_model.batches import EOS_WEIGHT, ExamplePool, FedRows, Flags, mask_drill, mask_text, number_flags
from experiments.demo_model.examples import Example
from experiments.demo_model.tasks import draw_task
from experiments.demo_model.tokenizer import EOS, MASK, token_of

PADDING_BLOCK = -1


class BlockBatchSource:
    """Draws the batch of any step of a training."""

    def __init__(self, tokenizer: Tokenizer, seed: int, batch_size: int, block_length: int) -> None:
        self.seed = seed
        self.block_length = block_length
        self.pool = ExamplePool(tokenizer, seed, batch_size, draw_task, lambda needed, _drill, _rng: needed)
        self.mask_id, self.eos_id = token_of(tokenizer, MASK), token_of(tokenizer, EOS)
        self.equals_id = tokenizer.token_to_id("=")
        self.is_number = number_flags(tokenizer)

    def rows(self, step: int) -> FedRows:
        """The decoder's input and targets at one step."""
        examples, rng = self.pool.batch(step), np.random.default_rng((self.seed, step))
        ends = [-(-example.length // self.block_length) * self.block_length for example in examples]
        starts = [len(example.prompt) // self.block_length * self.block_length for example in examples]
        text = max(ends) - self.block_length  # no block attends to the last one of the text
        copy = max(end - start for start, end in zip(starts, ends, strict=True))
        shape = len(examples), text + copy
        tokens, inputs = (np.full(shape, self.eos_id, dtype=np.int64) for _ in range(2))
        weights, positions = np.zeros(shape, dtype=np.float32), np.zeros(shape, dtype=np.int64)
        blocks = np.full(shape, PADDING_BLOCK)
        positions[:, :text] = np.arange(text)
        blocks[:, :text] = positions[:, :text] // self.block_length
        for row, (example, start, end) in enumerate(zip(examples, starts, ends, strict=True)):
            whole = np.full(end, self.eos_id)
            whole[: example.length - 1] = example.prompt + example.answer
            masked, own_weights = self._mask(whole, example, start, rng)
            place = slice(text, text + end - start)
            tokens[row, : min(text, end)] = inputs[row, : min(text, end)] = whole[:text]
            tokens[row, place] = whole[start:]
            inputs[row, place] = np.where(masked, self.mask_id, whole[start:])
            weights[row, place] = own_weights
            positions[row, place] = np.arange(start, end)
            blocks[row, place] = positions[row, place] // self.block_length
        return FedRows(inputs, tokens, weights, positions, allowed_keys(blocks, text))

    def _mask(
        self, whole: NDArray[np.int64], example: Example, start: int, rng: np.random.Generator
    ) -> tuple[Flags, NDArray[np.float32]]:
        """Draw the masks of each block of the copy. Shapes: whole [end] -> [end - start] each."""
        prompt, answer_end, end = len(example.prompt), example.length - 1, len(whole)
        masked = np.zeros(end, dtype=np.bool_)
        if example.drill:
            masked[prompt:answer_end] = mask_drill(whole[prompt:answer_end] == self.equals_id, rng)
        else:
            for block in range(start, end, self.block_length):
                own = slice(max(block, prompt), block + self.block_length)
                masked[own] = mask_text(self.is_number[whole[own]], rng)
        weights = masked.astype(np.float32)
        weights[answer_end + 1 :] *= EOS_WEIGHT
        return masked[start:], weights[start:]


def allowed_keys(blocks: NDArray[np.int64], text: int) -> Flags:
    """The keys to which each token attends. The first `text` tokens are the text, the others its masked copy.

    Shapes: blocks [B, C + N], the block of each token -> [B, C + N, C + N].
    """
    query, key = blocks[:, :, None], blocks[:, None, :]
    is_text = np.arange(blocks.shape[1]) < text
    from_text, to_text = is_text[:, None], is_text[None, :]
    earlier = to_text & ((key < query) | (from_text & (key == query)))
    own_copy = ~from_text & ~to_text & (key == query)
    return np.asarray(earlier | own_copy)
