"""Penalties for repeated tokens, and a bias for some tokens. They change logits before a token is chosen.

Source: vLLM's order and formulas. A token counts as often as it is written on the canvas, in whatever order, so that
the same canvas has the same logits on all instances. The tokens of one step do not count for each other.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shared.arrays import Float64, Int32, Int64
from shared.messages.requests import Sampling

PutOnDevice = Callable[[Sequence[NDArray[Any]]], list[Tensor]]


@dataclass(frozen=True, slots=True)
class LogitChanges:
    """The changes of one request. Shapes: E tokens, ascending."""

    rows: slice  # of the candidates
    tokens: Int64  # [E]
    bias: Float64  # [E], added first
    divisor: Float64  # [E], divides what is above 0 then, and multiplies the rest
    lowered: Float64  # [E], subtracted last


def logit_changes(sampling: Sampling, rows: slice, prompt: Int32, written: Int32) -> LogitChanges:
    """`written`: the tokens of the output that count."""
    biased = np.fromiter(sampling.logit_bias, np.int64)
    read = prompt if sampling.repetition_penalty != 1 else prompt[:0]
    tokens = np.unique(np.concatenate([biased, read, written]).astype(np.int64))
    counts = np.bincount(np.searchsorted(tokens, written), minlength=len(tokens))
    repeated = counts > 0
    lowered = sampling.frequency_penalty * counts + sampling.presence_penalty * repeated
    repeated[np.searchsorted(tokens, read)] = True
    bias = np.zeros(len(tokens))
    bias[np.searchsorted(tokens, biased)] = list(sampling.logit_bias.values())
    return LogitChanges(rows, tokens, bias, np.where(repeated, sampling.repetition_penalty, 1.0), lowered)


def change_logits(logits: Tensor, changes: Sequence[LogitChanges], first_token: int, put: PutOnDevice) -> None:
    """Apply the changes to the logits [R, V], in place. `first_token`: that of the first column; `put` brings arrays to
    the device."""
    arrays = list[NDArray[Any]]()
    for each in changes:
        columns = each.tokens - first_token
        is_here = (columns >= 0) & (columns < logits.shape[1])
        arrays += [values[is_here] for values in (columns, each.bias, each.divisor, each.lowered)]
    sent = iter(put(arrays))
    for each, own, bias, divisor, lowered in zip(changes, sent, sent, sent, sent, strict=True):
        rows = logits[each.rows]
        values = rows.index_select(1, own).double() + bias
        values = torch.where(values > 0, values / divisor, values * divisor) - lowered
        rows.index_copy_(1, own, values.to(rows.dtype))
