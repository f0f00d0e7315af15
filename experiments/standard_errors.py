"""Means of runs with their standard errors."""

from collections.abc import Sequence

import numpy as np


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """The mean and its standard error; the error of one value is nan."""
    error = float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")
    return float(np.mean(values)), error


def mean_difference(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float]:
    """The mean of the paired differences and its standard error. Shapes: both [runs], in the same order."""
    return mean_and_error(np.subtract(ours, theirs).tolist())


def percent(values: Sequence[float]) -> str:
    """The mean with its standard error, in percent."""
    mean, error = mean_and_error(values)
    return f"{100 * mean:.1f} ± {100 * error:.1f}"
