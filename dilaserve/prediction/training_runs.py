"""Which requests are run to learn from, and under which thresholds."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dilaserve.load.workload import read_requests
from shared.arrays import Int32
from shared.messages.requests import ChatMessage
from shared.text import TextModel, round_up_to_blocks

CHANGE_SHARE = 0.3  # of the steps of a changing threshold that change it
DEFAULT_OUTPUT_TOKENS = 128


@dataclass(frozen=True, slots=True)
class Prompt:
    """A request without its thresholds. Units: tokens."""

    ids: Int32  # [P]
    output_length: int  # whole blocks
    block_length: int


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """One request and the thresholds of its steps: those of `first`, then `threshold` to the end."""

    prompt: Prompt
    threshold: float
    first: tuple[float, ...] = ()

    def threshold_of(self, step: int) -> float:
        return self.first[step] if step < len(self.first) else self.threshold


def fixed_runs(prompts: Sequence[Prompt], thresholds: Sequence[float]) -> list[TrainingRun]:
    """Each prompt under every threshold. Source: "Step Prediction"."""
    return [TrainingRun(prompt, threshold) for prompt in prompts for threshold in thresholds]


def changing_runs(
    prompts: Sequence[Prompt], thresholds: Sequence[float], steps: float, random: np.random.Generator
) -> list[TrainingRun]:
    """Each prompt once under thresholds that change on the way, as serving has it, and from there on under every
    threshold. `steps` is how many a request takes about; the last change is at any of them."""
    runs = []
    for prompt in prompts:
        first = [float(random.choice(thresholds))]
        for _ in range(int(random.integers(0, max(1, round(steps))))):
            first.append(float(random.choice(thresholds)) if random.random() < CHANGE_SHARE else first[-1])
        runs += [TrainingRun(prompt, threshold, tuple(first)) for threshold in thresholds]
    return runs


def read_prompts(path: Path, text: TextModel, block_length: int, output_lengths: Sequence[int]) -> list[Prompt]:
    """The requests of a file in the format of `dilaserve bench`, each prompt as one user turn of a chat.

    `output_lengths` are taken in turn; without any, each row's own is. Raises: BadInput.
    """
    prompts = []
    for number, row in enumerate(read_requests(path, "--prompts")):
        wanted = row.output_tokens or DEFAULT_OUTPUT_TOKENS
        if output_lengths:
            wanted = output_lengths[number % len(output_lengths)]
        ids = text.encode_chat([ChatMessage(role="user", content=row.prompt)])
        length = round_up_to_blocks(wanted, block_length)
        text.check_length(len(ids), length, "output_tokens")
        prompts.append(Prompt(ids, length, block_length))
    return prompts
