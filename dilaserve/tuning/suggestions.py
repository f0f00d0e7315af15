"""Suggests candidate thresholds by the quality of the recorded outputs. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dilaserve.quality.answers import states_answer
from shared.arrays import Int32

TOLERANCE = 0.05  # accepted loss of quality at the lowest suggested threshold


@dataclass(frozen=True, slots=True)
class Quality:
    """The quality at each threshold, in [0, 1], and what it measures."""

    thresholds: Sequence[float]  # ascending
    values: Sequence[float]
    measure: str


def exact_match(thresholds: Sequence[float], texts: Sequence[str], answers: Sequence[str | None]) -> Quality | None:
    """The share of right texts; `texts`: of each prompt at every threshold, in order. None: no prompt has an answer."""
    columns: list[list[bool]] = [[] for _ in thresholds]
    for number, text in enumerate(texts):
        answer = answers[number // len(thresholds)]
        if answer is not None:
            columns[number % len(thresholds)].append(states_answer(text, answer))
    if not columns[0]:
        return None
    return Quality(thresholds, [float(np.mean(column)) for column in columns], "exact match")


def agreement(thresholds: Sequence[float], outputs: Sequence[Int32]) -> Quality:
    """The share of tokens that are the same as at the highest threshold; `outputs` as the texts of `exact_match`."""
    count = len(thresholds)
    highest = [outputs[number // count * count + count - 1] for number in range(len(outputs))]
    same = np.array([float(np.mean(own == best)) for own, best in zip(outputs, highest, strict=True)])
    return Quality(thresholds, same.reshape(-1, count).mean(axis=0).tolist(), "tokens as at the highest threshold")


def suggested_thresholds(quality: Quality) -> tuple[float, ...]:
    """The highest threshold, and those below it, as far as none loses more than TOLERANCE of the best quality, or
    has none at all."""
    least, kept = max(quality.values) - TOLERANCE, [quality.thresholds[-1]]
    for threshold, value in list(zip(quality.thresholds, quality.values, strict=True))[-2::-1]:
        if value < least or not value:
            break
        kept.append(threshold)
    return tuple(reversed(kept))
