"""Verdicts on the figures: means over seeds, constants that win, targets that are reached. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from experiments.policies.points import FLOOD, NO_FLOOD, OVERLOAD, POLICY, RIGHT_PROFILE, Target
from experiments.policies.rows import ONE_SHOT
from experiments.policies.runs import Figures

TOLERANCE = 0.1  # points of attainment or accuracy that count as a difference
MAX_PROFILE_LOSS = 0.5  # points of attainment or accuracy that a wrong profile may cost
MAX_ONE_SHOT_LOSS = 3.0  # points of attainment that one-shot estimates may cost
MIN_SHARE_OF_BOUND = 0.8  # of the attainment that the fluid bound allows
MAX_FLOOD_LOSS = (1.0, 0.5)  # points of attainment, and of accuracy, that a flood of one key may cost the others


@dataclass(frozen=True, slots=True)
class Means:
    """Means over the seeds of a row at a point. Units: percent; seconds."""

    attainment: float
    accuracy: float
    accuracy_met: float | None
    attainment_longest: float
    attainment_per_class: Mapping[str, float]  # by SLO or key; empty if all requests have the same
    accuracy_per_class: Mapping[str, float]
    bound: float | None
    mean_s: float
    p99_s: float
    cpu_s: float


def means(runs: Sequence[Figures]) -> Means:
    has_classes = len(runs[0].attainment_per_class) > 1
    bounds = [run.bound for run in runs if run.bound is not None]
    met = [run.accuracy_met for run in runs if run.accuracy_met is not None]
    return Means(
        attainment=_mean([run.attainment for run in runs]),
        accuracy=_mean([run.accuracy for run in runs]),
        accuracy_met=_mean(met) if met else None,
        attainment_longest=_mean([run.attainment_longest for run in runs]),
        attainment_per_class=_by_class([run.attainment_per_class for run in runs]) if has_classes else {},
        accuracy_per_class=_by_class([run.accuracy_per_class for run in runs]) if has_classes else {},
        bound=_mean(bounds) if bounds else None,
        mean_s=_mean([run.mean_s for run in runs]),
        p99_s=_mean([run.p99_s for run in runs]),
        cpu_s=_mean([run.cpu_s for run in runs]),
    )


def wins(constant: Means, policy: Means) -> bool:
    """Whether a constant is TOLERANCE better in attainment or accuracy, and not TOLERANCE worse in the other."""
    gains = _gains(constant, policy)
    return max(gains) >= TOLERANCE and min(gains) > -TOLERANCE


def missed(target: Target, policy: Means) -> list[str]:
    """The parts of the target that the policy misses; empty if it reaches all."""
    parts = {"attainment": policy.attainment - target.attainment, "accuracy": policy.accuracy - target.accuracy}
    if target.attainment_per_class is not None:
        for slo, attainment in policy.attainment_per_class.items():
            parts[f"attainment at SLO {slo} s"] = attainment - target.attainment_per_class
    if target.mean_s is not None:
        parts["mean latency"] = target.mean_s - policy.mean_s
    return [f"{name} by {-over:.2f}" for name, over in parts.items() if over < 0]


def robustness(scores: Mapping[str, Mapping[str, Means]]) -> dict[str, bool]:
    """Each target of the policy with a wrong profile, with one-shot estimates, in overload and under a flood, and
    whether it is reached.

    `scores` by point and row; a target without its two runs is left out.
    """
    reached = {}
    for point, rows in scores.items():
        right = scores.get(RIGHT_PROFILE.get(point, ""), {})
        if POLICY in rows and POLICY in right:
            attainment, accuracy = _gains(rows[POLICY], right[POLICY])
            text = f"{point}: attainment {attainment:+.2f}, accuracy {accuracy:+.2f} against the right profile"
            is_reached = min(attainment, accuracy) >= -MAX_PROFILE_LOSS
            reached[f"{text} (target: at least -{MAX_PROFILE_LOSS:g})"] = is_reached
        if POLICY in rows and ONE_SHOT in rows:
            attainment, _ = _gains(rows[ONE_SHOT], rows[POLICY])
            text = f"{point}, {ONE_SHOT}: attainment {attainment:+.2f} (target: at least -{MAX_ONE_SHOT_LOSS:g})"
            reached[text] = attainment >= -MAX_ONE_SHOT_LOSS
    overload, flood, absent = (scores.get(point.name, {}).get(POLICY) for point in (OVERLOAD, FLOOD, NO_FLOOD))
    if overload and overload.bound:
        share = overload.attainment / overload.bound
        text = f"{OVERLOAD.name}: {share:.2f} of the fluid bound (target: at least {MIN_SHARE_OF_BOUND:g})"
        reached[text] = share >= MIN_SHARE_OF_BOUND
    if flood and absent:
        attainment = flood.attainment_per_class["other keys"] - absent.attainment
        accuracy = flood.accuracy_per_class["other keys"] - absent.accuracy
        text = f"{FLOOD.name}: the other keys' attainment {attainment:+.2f}, accuracy {accuracy:+.2f} by the flood"
        is_reached = attainment >= -MAX_FLOOD_LOSS[0] and accuracy >= -MAX_FLOOD_LOSS[1]
        reached[f"{text} (target: at least -{MAX_FLOOD_LOSS[0]:g}, -{MAX_FLOOD_LOSS[1]:g})"] = is_reached
    return reached


def _gains(row: Means, other: Means) -> tuple[float, float]:
    """Points of attainment and of accuracy by which a row is better."""
    return row.attainment - other.attainment, row.accuracy - other.accuracy


def _by_class(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Means under the names of the first run: the usual SLO differs by less than 0.1 s between seeds."""
    values = zip(*(run.values() for run in runs), strict=True)
    return {name: _mean(of_runs) for name, of_runs in zip(runs[0], values, strict=True)}


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))
