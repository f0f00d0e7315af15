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

from shared.arrays import Bool, Float64, Int32, Int64
from shared.messages.requests import Sampling

MIN_DIVISOR = 1e-3  # a lower one could make a logit infinite

PutOnDevice = Callable[[Sequence[NDArray[Any]]], list[Tensor]]


@dataclass(frozen=True, slots=True)
class LogitChanges:
    """The changes of one request in one step. Shapes: E tokens, each once."""

    rows: slice  # of its candidates
    tokens: Int64  # [E]
    bias: Float64  # [E], added first
    divisor: Float64  # [E], divides what is above 0 then, and multiplies the rest
    subtracted: Float64  # [E], last


@dataclass(frozen=True, slots=True)
class RequestChanges:
    """The part that is the same in all steps of a request. Shapes: B tokens, ascending."""

    sampling: Sampling
    tokens: Int64  # [B]: those with a bias, and with a repetition penalty those of the prompt
    bias: Float64  # [B]
    is_in_prompt: Bool  # [B]

    @classmethod
    def of(cls, sampling: Sampling, prompt: Int32) -> "RequestChanges":
        biased = np.fromiter(sampling.logit_bias, np.int64)
        read = prompt if sampling.repetition_penalty != 1 else prompt[:0]
        tokens = np.unique(np.concatenate([biased, read]).astype(np.int64))
        bias = np.zeros(len(tokens))
        bias[np.searchsorted(tokens, biased)] = list(sampling.logit_bias.values())
        return cls(sampling, tokens, bias, np.isin(tokens, read))

    def after(self, written: Int32, rows: slice) -> LogitChanges:
        """`written`: the tokens of the output that count."""
        if not self.sampling.has_penalties:
            written = written[:0]
        unique, times = np.unique(written, return_counts=True)
        at = np.searchsorted(self.tokens, unique)
        is_known = np.append(self.tokens, -1)[at] == unique
        more = np.count_nonzero(~is_known)
        counts = np.concatenate([np.zeros(len(self.tokens)), times[~is_known]])
        counts[at[is_known]] = times[is_known]
        is_repeated = np.append(self.is_in_prompt, np.ones(more, dtype=np.bool_)) | (counts > 0)
        penalties = self.sampling
        return LogitChanges(
            rows,
            np.concatenate([self.tokens, unique[~is_known]]),
            np.append(self.bias, np.zeros(more)),
            np.where(is_repeated, max(penalties.repetition_penalty, MIN_DIVISOR), 1.0),
            penalties.frequency_penalty * counts + penalties.presence_penalty * (counts > 0),
        )


def change_logits(logits: Tensor, changes: Sequence[LogitChanges], first_token: int, put: PutOnDevice) -> None:
    """Apply the changes to the logits [R, V], in place. `first_token`: that of the first column; `put` brings arrays to
    the device."""
    arrays = list[NDArray[Any]]()
    for each in changes:
        columns = each.tokens - first_token
        is_here = (columns >= 0) & (columns < logits.shape[1])
        arrays += [values[is_here] for values in (columns, each.bias, each.divisor, each.subtracted)]
    sent = iter(put(arrays))
    for each, own, bias, divisor, subtracted in zip(changes, sent, sent, sent, sent, strict=True):
        rows = logits[each.rows]
        values = rows.index_select(1, own).double() + bias
        values = torch.where(values > 0, values / divisor, values * divisor) - subtracted
        rows.index_copy_(1, own, values.to(rows.dtype))
