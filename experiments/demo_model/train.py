"""Trains a demo model; a run resumed from a checkpoint gives the same weights as an uninterrupted one."""

import os
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional as F
from torch.optim import AdamW, Muon, Optimizer

from experiments.demo_model.batches import BatchSource, FedRows
from experiments.demo_model.block_batches import BlockBatchSource
from experiments.demo_model.model import hidden_rows, new_decoder
from services.worker.model.decoder import PackedDecoder


@dataclass(frozen=True, slots=True)
class Recipe:
    """All parameters of the trained weights."""

    steps: int = 9_000
    batch_size: int = 24
    peak_rate: float = 2e-3  # learning rate
    warmup_steps: int = 200
    slow_fall_steps: int = 12_000  # the learning rate falls linearly and would reach zero after this many steps, ...
    cooldown_steps: int = 600  # ... but falls to zero in the last of the steps
    average_decay: float = 0.998  # of the running average of the weights, which is published
    seed: int = 0
    block_length: int = 0  # of a block-causal model; 0: attention in both directions


# The block-causal model learns more forms of answers.
BLOCK_RECIPE = Recipe(steps=7_000, slow_fall_steps=18_500, block_length=16)


class Training:
    """A training run: the decoder, its optimizers, the running average of its weights and the next step's number."""

    def __init__(self, tokenizer: Tokenizer, recipe: Recipe) -> None:
        self.recipe = recipe
        self.tokenizer = tokenizer
        self.source: BatchSource | BlockBatchSource = (
            BlockBatchSource(tokenizer, recipe.seed, recipe.batch_size, recipe.block_length)
            if recipe.block_length
            else BatchSource(tokenizer, recipe.seed, recipe.batch_size)
        )
        self.decoder = new_decoder(tokenizer, recipe.seed, recipe.block_length)
        self.average = deepcopy(self.decoder).requires_grad_(False).eval()
        self.optimizers = new_optimizers(self.decoder)
        self.step = 0

    def run_step(self) -> float:
        """One optimizer step. Returns: its loss."""
        rate = learning_rate(self.step, self.recipe)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
        loss = batch_loss(self.decoder, self.source.rows(self.step))
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.decoder.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        self.step += 1
        self._update_average()
        return loss.item()

    @torch.no_grad()
    def _update_average(self) -> None:
        """Update the average; at first with a small decay, so that the initial weights soon lose influence."""
        decay = min(self.recipe.average_decay, self.step / (self.step + 10))
        averages: list[Tensor] = list(self.average.parameters())
        weights: list[Tensor] = list(self.decoder.parameters())
        torch._foreach_lerp_(averages, weights, 1 - decay)

    def save(self, path: Path) -> None:
        """Write a checkpoint, whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        state = {
            "step": self.step,
            "recipe": self.recipe,
            "decoder": self.decoder.state_dict(),
            "average": self.average.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
        }
        partial = path.with_suffix(".partial")
        torch.save(state, partial)
        os.replace(partial, path)

    def resume(self, path: Path) -> None:
        """Continue from a checkpoint.

        Raises: ValueError if it was made with another recipe.
        """
        with torch.serialization.safe_globals([Recipe]):
            state = torch.load(path, weights_only=True)
        if state["recipe"] != self.recipe:
            raise ValueError(f"{path} belongs to another recipe: {state['recipe']}; remove it to start again")
        self.step = state["step"]
        self.decoder.load_state_dict(state["decoder"])
        self.average.load_state_dict(state["average"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)


def new_optimizers(decoder: PackedDecoder) -> list[Optimizer]:
    """Muon for the matrices of the layers, AdamW for embedding, head and norms; both at one learning rate."""
    matrices = [p for name, p in decoder.named_parameters() if p.ndim == 2 and name.startswith("layers.")]
    others = [p for name, p in decoder.named_parameters() if p.ndim < 2 or not name.startswith("layers.")]
    return [
        Muon(matrices, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
        AdamW(others, betas=(0.9, 0.98), weight_decay=0.0, fused=True),
    ]


def learning_rate(step: int, recipe: Recipe) -> float:
    """Linear warm-up, then a slow linear fall, and a fast one to zero over the last steps."""
    warm = min(1.0, (step + 1) / recipe.warmup_steps)
    slow = 1.0 - step / recipe.slow_fall_steps
    quick = min(1.0, (recipe.steps - step) / recipe.cooldown_steps)
    return recipe.peak_rate * warm * slow * quick


def batch_loss(decoder: PackedDecoder, fed: FedRows) -> Tensor:
    """Weighted mean cross-entropy of the masked tokens, matrix products in bfloat16."""
    targets, weights = torch.from_numpy(fed.targets).flatten(), torch.from_numpy(fed.weights).flatten()
    positions, allowed = (None if x is None else torch.from_numpy(x) for x in (fed.positions, fed.allowed))
    rows = weights.nonzero().flatten()
    with torch.autocast("cpu", torch.bfloat16):
        hidden = hidden_rows(decoder, torch.from_numpy(fed.inputs), positions, allowed)
        logits = decoder.logits(hidden[rows])  # [R, V]
    losses = F.cross_entropy(logits.float(), targets[rows], reduction="none")
    return (losses * weights[rows]).sum() / weights.sum()


def train(training: Training, after_step: Callable[[Training, float], None]) -> None:
    """Run all remaining steps; `after_step` gets each step's loss."""
    while training.step < training.recipe.steps:
        after_step(training, training.run_step())
