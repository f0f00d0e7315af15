"""The requests and thresholds of training runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dilaserve.load.workload import read_requests
from shared.arrays import Int32
from shared.messages.requests import ChatMessage
from shared.text import TextModel, round_up_to_blocks

CHANGE_PROBABILITY = 0.3  # of a threshold change at a step
DEFAULT_OUTPUT_TOKENS = 128


@dataclass(frozen=True, slots=True)
class Prompt:
    """A request without its thresholds. Units: tokens."""

    ids: Int32  # [P]
    output_length: int  # whole blocks
    block_length: int
    block_offset: int = 0  # tokens of the prompt that belong to the first block


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """One request and its thresholds: those of `first` at the first steps, then `threshold`."""

    prompt: Prompt
    threshold: float
    first: tuple[float, ...] = ()

    def threshold_of(self, step: int) -> float:
        return self.first[step] if step < len(self.first) else self.threshold


def fixed_runs(prompts: Sequence[Prompt], thresholds: Sequence[float]) -> list[TrainingRun]:
    """Each prompt at every threshold. Source: "Step Prediction"."""
    return [TrainingRun(prompt, threshold) for prompt in prompts for threshold in thresholds]


def changing_runs(
    prompts: Sequence[Prompt], thresholds: Sequence[float], steps: float, random: np.random.Generator
) -> list[TrainingRun]:
    """Each prompt with randomly changing thresholds up to a random step, as in serving, then at every threshold.
    `steps` is the mean number of steps of a request."""
    runs = []
    for prompt in prompts:
        first = [float(random.choice(thresholds))]
        for _ in range(int(random.integers(0, max(1, round(steps))))):
            first.append(float(random.choice(thresholds)) if random.random() < CHANGE_PROBABILITY else first[-1])
        runs += [TrainingRun(prompt, threshold, tuple(first)) for threshold in thresholds]
    return runs


def read_prompts(path: Path, text: TextModel, block_length: int, output_lengths: Sequence[int]) -> list[Prompt]:
    """The requests of a file, as chats. `output_lengths`: used in turn; empty: each row's own. Raises: BadInput."""
    prompts = []
    for number, row in enumerate(read_requests(path, "--prompts")):
        own_length = row.output_tokens or DEFAULT_OUTPUT_TOKENS
        output_tokens = output_lengths[number % len(output_lengths)] if output_lengths else own_length
        ids = text.encode_chat([ChatMessage(role="user", content=row.prompt)])
        offset = text.card.block_offset(len(ids), block_length)
        length = round_up_to_blocks(output_tokens, block_length, offset)
        text.check_length(len(ids), length, "output_tokens")
        prompts.append(Prompt(ids, length, block_length, offset))
    return prompts
