"""One block of the canvas (the output) of a DiffusionGemma request while it is denoised.

Source: DiffusionGemma's entropy-bound sampler and its stop. Each step reads the draft (not one of speculative decoding)
and predicts all its tokens. The draws of lowest entropy stay in the next draft; random tokens replace all others. The
most probable tokens of the last step become the block.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch

from services.worker.model.canvas_runner import random_tokens
from services.worker.model.families.config import CanvasRules
from services.worker.model.model_runner import TokenPredictions
from shared.arrays import Bool, Float64, Int64


@dataclass(frozen=True, slots=True)
class CanvasDraft:
    """Shapes: B tokens of a block."""

    rules: CanvasRules
    vocab_size: int
    seed: int
    positions: Int64  # [B], from the start of the request's canvas
    tokens: Int64  # [B], that the next step reads
    step: int = 0  # number of the next step, from 0
    unchanged_steps: int = 0  # consecutive steps, up to the last one, whose predictions equal those of the step before
    predicted: Int64 | None = None  # [B], by the last step

    @classmethod
    def begin(cls, rules: CanvasRules, vocab_size: int, seed: int, positions: Int64) -> "CanvasDraft":
        """The draft of a block before its first step: random tokens."""
        return cls(rules, vocab_size, seed, positions, _random(seed, 0, positions, vocab_size))

    @property
    def temperature(self) -> float:
        """Of the next step."""
        return self.rules.temperature(self.step)

    def after(self, read: TokenPredictions, rows: slice, threshold: float) -> "CanvasDraft":
        """The draft after a step, of which these rows are the predictions."""
        assert read.drawn is not None, "the runner of canvases predicts them"
        assert read.entropies is not None, "the runner of canvases predicts them"
        predicted, entropies, step = read.tokens[rows], read.entropies[rows], self.step + 1
        kept = accepted(entropies, self.rules.bound(threshold))
        is_same = self.predicted is not None and np.array_equal(self.predicted, predicted)
        unchanged = self.unchanged_steps + 1 if is_same else 0
        random = _random(self.seed, step, self.positions, self.vocab_size)
        tokens = np.where(kept, read.drawn[rows], random)
        return replace(self, tokens=tokens, step=step, unchanged_steps=unchanged, predicted=predicted)

    def has_ended(self, entropies: Float64) -> bool:
        """Whether the block is finished. `entropies`: [B], of the step before."""
        is_confident = bool(entropies.mean() < self.rules.max_mean_entropy)
        return self.step == self.rules.max_steps or (self.unchanged_steps >= self.rules.stable_steps and is_confident)


def _random(seed: int, step: int, positions: Int64, vocab_size: int) -> Int64:
    return random_tokens(seed, step, torch.from_numpy(positions), vocab_size).numpy()


def accepted(entropies: Float64, bound: float) -> Bool:
    """The places of lowest entropy of which the sum, without the highest one, is within the bound. [B] -> [B]."""
    order = entropies.argsort(kind="stable")
    ordered = entropies[order]
    kept = np.zeros(len(entropies), dtype=np.bool_)
    kept[order] = ordered.cumsum() - ordered <= bound
    return kept
