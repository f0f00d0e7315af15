"""Runs one batch through the model: arrays in, a token and its confidence for each candidate out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from services.worker.cache.kv_store import KvStore
from services.worker.model.attention import attention, kernel_name, kernel_of
from services.worker.model.cuda_graphs import CacheStepGraphs, can_capture
from services.worker.model.decoder import PackedDecoder
from services.worker.model.families import ModelConfig
from services.worker.model.forward_batch import ForwardBatch, ForwardInputs, Transfer, arrays_of, max_lengths, slices_of
from services.worker.model.logit_changes import change_logits
from services.worker.model.row_padding import num_padded_rows
from services.worker.model.sampling import (
    LIMITS,
    Noise,
    Truncation,
    Vocabulary,
    best_of,
    combine_shards,
    combine_top,
    is_truncated,
    lowest_logits,
    top_logits,
    total_of,
)
from services.worker.model.span_attention import span_arrays, span_attention, spans_of
from shared.arrays import Bool, Float64, Int64

NO_TOKEN = -1  # of a rank that is out of memory


@dataclass(frozen=True, slots=True)
class TokenPredictions:
    """Shapes: [R], in the order of the batch's candidates."""

    tokens: Int64
    confidences: Float64  # probability, in (0, 1]
    selected: Bool  # whether the step writes the token
    top: "TopPredictions | None" = None  # None: no request wants them
    scored: Float64 | None = None  # [Q], log-probabilities of the batch's scored tokens; None: it has none
    drawn: Int64 | None = None  # of canvases: a token drawn for each place, where `tokens` has the most probable one
    entropies: Float64 | None = None  # of canvases: of each place, in nats


@dataclass(frozen=True, slots=True)
class TopPredictions:
    """The most probable tokens of some candidates, the most probable first. Shapes: A candidates, k tokens each."""

    rows: Int64  # [A], ascending indices of the candidates
    tokens: Int64  # [A, k]
    confidences: Float64  # [A, k]

    @classmethod
    def read(cls, rows: Int64, found: Sequence[Float64]) -> "TopPredictions | None":
        """`found`: tokens and confidences, or nothing."""
        return cls(rows, found[0].astype(np.int64), found[1]) if found else None


class ModelRunner(Protocol):
    """A model, as the engine uses it."""

    @property
    def config(self) -> ModelConfig: ...
    @property
    def cache_tokens(self) -> int:
        """The capacity of its cache in tokens; 0 without a cache."""

    def run(self, batch: ForwardBatch) -> TokenPredictions: ...


Gather = Callable[[Tensor], Tensor]
"""Gathers a tensor from the ranks that share the vocabulary: any shape -> [ranks, ...]."""


class Runner:
    """A decoder, or one rank's share of it, with its cache, on one device."""

    def __init__(
        self, decoder: PackedDecoder, cache_tokens: int = 0, gather: Gather | None = None, attention: str = "auto"
    ) -> None:
        """Raises: ValueError if `attention` names a kernel that cannot run here, or not with this model."""
        self.config = decoder.config
        self.cache_tokens = cache_tokens
        self.device = decoder.embed.weight.device
        self.dtype = decoder.embed.weight.dtype
        self.decoder = decoder
        self._gather = gather
        self._vocabulary = Vocabulary(decoder.first_token, self.config.mask_token_id)
        self.attention = kernel_name(attention, self.device, self.dtype, has_text_spans=self.config.has_text_spans)
        self._kernel = kernel_of(self.attention)
        self._transfer, self._noise_transfer = Transfer(self.device), Transfer(self.device)
        self._truncation_transfer, self._allowed_transfer = Transfer(self.device), Transfer(self.device)
        self._read_transfer, self._changes_transfer = Transfer(self.device), Transfer(self.device)
        self._bits = torch.tensor([128 >> bit for bit in range(8)], dtype=torch.uint8, device=self.device)
        self._store = KvStore(decoder.kv_shape, cache_tokens) if cache_tokens else None
        self._graphs: CacheStepGraphs | None = None
        is_alone_on_cuda = self.device.type == "cuda" and gather is None
        if self._store and is_alone_on_cuda and can_capture(self.attention, self.config, self.device, self.dtype):
            self._graphs = CacheStepGraphs(decoder, self._store, self._kernel, self._transfer)
            self._graphs.capture()

    def run(self, batch: ForwardBatch) -> TokenPredictions:
        """Run one forward, with the head for the candidates' rows only.

        Raises: torch.OutOfMemoryError; the runner can run another batch.
        """
        try:
            return self._run(batch)
        except torch.OutOfMemoryError:
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)  # the inputs' buffer is used again
            raise

    @torch.inference_mode()
    def _run(self, batch: ForwardBatch) -> TokenPredictions:
        if self._store is not None:
            self._store.move(batch.moves)
        count = len(batch.rows)
        rows = batch.rows[np.minimum(np.arange(num_padded_rows(count)), count - 1)]  # repeats the last one
        hidden = self._hidden(batch, rows)
        logits = self.decoder.logits(hidden)[:count]  # [R, V of this rank]
        if batch.changes:
            change_logits(logits, batch.changes, self._vocabulary.first, self._changes_transfer.put)
        self._forbid(logits, batch)
        after_temperature = self.config.confidence_at_temperature
        floor = self._floor(logits, batch)
        noise = self._noise(batch)
        top_rows = rows_with_top_tokens(batch)
        wanted = [top_rows, batch.scored_rows, batch.scored_tokens]
        rows_of_top, rows_of_labels, label_tokens = (
            self._read_transfer.put(wanted) if any(map(len, wanted)) else [hidden[:0]] * len(wanted)
        )
        top = self._top_logits(logits, batch, rows_of_top, noise) if len(top_rows) else None
        scored = self._scored_logits(logits, rows_of_labels, label_tokens) if len(batch.scored_rows) else None
        best = best_of(logits, noise, self._vocabulary, floor, after_temperature=after_temperature)
        parts = self._gather(best) if self._gather else best.unsqueeze(0)
        chosen = combine_shards(parts)
        if self._gather:
            chosen[0].masked_fill_((parts[:, 2] == NO_TOKEN).any(dim=0), NO_TOKEN)
        found = [chosen] if top is None else [chosen, combine_top(top, total_of(parts)[rows_of_top])]
        if scored is not None:
            found.append((scored - total_of(parts)[rows_of_labels]).unsqueeze(0))
        best_tokens, confidences, *others = to_host(found)
        if self._gather and best_tokens.min() == NO_TOKEN:
            raise torch.OutOfMemoryError("another rank is out of memory")
        logprobs = others.pop() if scored is not None else None
        tokens, is_strict = best_tokens.astype(np.int64), self.config.is_block_causal
        selected = select(tokens, confidences, batch, self.config.mask_token_id, is_strict=is_strict)
        return TokenPredictions(tokens, confidences, selected, TopPredictions.read(top_rows, others), scored=logprobs)

    def _hidden(self, batch: ForwardBatch, rows: Int64) -> Tensor:
        """The hidden states [R, W] of these rows of the fed tokens."""
        replayed = self._graphs.run(batch, rows) if self._graphs else None
        if replayed is not None:
            return replayed
        text = span_arrays(batch, self.config) if batch.num_text_spans else []
        sent = self._transfer.put([*arrays_of(batch, rows), *text])
        inputs = ForwardInputs(*max_lengths(batch), *sent[: len(sent) - len(text)])
        if text:
            spans = spans_of(batch, self.config, iter(sent[-len(text) :]))
            attend = span_attention(spans, inputs.write_entries, self._store, self.config, self.attention)
        else:
            attend = attention(inputs, self._store, self._kernel)
        hidden: Tensor = self.decoder(inputs.tokens, inputs.positions, attend, inputs.rows)
        return hidden

    def _forbid(self, logits: Tensor, batch: ForwardBatch) -> None:
        """Set the logits of tokens that a candidate's pattern does not allow to -inf, in place."""
        if not len(batch.constrained):
            return
        rows, bits = self._allowed_transfer.put([batch.constrained, batch.allowed.reshape(-1)])
        of_token = bits.view(*batch.allowed.shape, 1) & self._bits  # [A, ceil(V / 8), 8]
        first = self._vocabulary.first
        is_forbidden = of_token.flatten(1)[:, first : first + logits.shape[1]] == 0
        if len(batch.constrained) == len(logits):
            logits.masked_fill_(is_forbidden, -torch.inf)
        else:
            logits[rows] = logits[rows].masked_fill(is_forbidden, -torch.inf)

    def _top_logits(self, logits: Tensor, batch: ForwardBatch, rows: Tensor, noise: Noise | None) -> Tensor:
        """The highest logits of these rows: [parts, 2, A, k], see `top_logits`."""
        scale = noise.temperature if noise is not None and self.config.confidence_at_temperature else None
        top = top_logits(logits, rows, int(batch.top_logprobs.max()), self._vocabulary, scale)
        return self._gather(top) if self._gather else top.unsqueeze(0)

    def _scored_logits(self, logits: Tensor, rows: Tensor, tokens: Tensor) -> Tensor:
        """The logits of these tokens in these rows: int64 [Q] each -> float64 [Q]."""
        columns = tokens - self._vocabulary.first
        is_here = (columns >= 0) & (columns < logits.shape[1])
        own = logits[rows, columns.clamp(0, logits.shape[1] - 1)].double().masked_fill(~is_here, -torch.inf)
        return self._gather(own).amax(dim=0) if self._gather else own

    def _noise(self, batch: ForwardBatch) -> Noise | None:
        temperatures = batch.sampling["temperature"]
        if not temperatures.any():
            return None
        temperature, seed, step = (x.repeat(batch.counts) for x in (temperatures, batch.seeds, batch.steps))
        return Noise(*self._noise_transfer.put([temperature, seed, step, batch.candidates]))

    def _floor(self, logits: Tensor, batch: ForwardBatch) -> Tensor | None:
        """The lowest logit that each row may draw, float64 [R]; None: no row is truncated."""
        rows = truncated_rows(batch)
        if not len(rows):
            return None
        request = np.arange(len(batch.counts)).repeat(batch.counts)[rows]
        limits = [batch.sampling[name][request] for name in LIMITS]
        truncation = Truncation(*self._truncation_transfer.put([rows, *limits]))
        whole = self._gather(logits).movedim(0, 1).flatten(1) if self._gather else logits  # [R, V of all ranks]
        return lowest_logits(whole, truncation, self.config.mask_token_id)


def rows_with_top_tokens(batch: ForwardBatch) -> Int64:
    """The candidates whose most probable tokens are wanted: indices [A]."""
    if not batch.top_logprobs.any():
        return batch.counts[:0]
    return np.flatnonzero((batch.top_logprobs > 0).repeat(batch.counts))


def to_host(found: Sequence[Tensor]) -> list[Float64]:
    """The rows of each of these tensors, copied at once: the step's only synchronisation."""
    if len(found) == 1:
        return list(found[0].cpu().numpy())
    ends = np.cumsum([tensor.numel() for tensor in found])
    flat = torch.cat([tensor.flatten() for tensor in found]).cpu().numpy()
    parts = np.split(flat, ends[:-1])
    return [row for part, tensor in zip(parts, found, strict=True) for row in part.reshape(tensor.shape)]


def truncated_rows(batch: ForwardBatch) -> Int64:
    """The candidates that are drawn from a truncated distribution: indices [F]."""
    if not batch.sampling["temperature"].any():
        return batch.counts[:0]
    return np.flatnonzero(is_truncated(batch.sampling).repeat(batch.counts))


def select(tokens: Int64, confidences: Float64, batch: ForwardBatch, mask_token_id: int, *, is_strict: bool) -> Bool:
    """Select every candidate whose confidence reaches its limit (with `is_strict`: exceeds it) and whose token is not
    the current one, and always the most confident mask of each request that has masks. A candidate is a mask, whose
    limit is the threshold, or a token that may change, whose limit is the edit threshold.

    Source: the threshold rule of Fast-dLLM; with `is_strict` that of SDAR and LLaDA2; both limits are LLaDA2.1's. Among
    equal confidences, the first candidate counts as the most confident; one that is not a number counts as the least.
    Shapes: tokens and confidences [R] -> [R].
    """
    reached = confidences > batch.limits if is_strict else confidences >= batch.limits
    selected: Bool = reached & (tokens != batch.current)
    is_masked = batch.current == mask_token_id
    score = np.where(is_masked, np.where(np.isnan(confidences), -1.0, confidences), -2.0)
    for rows in slices_of(batch.counts):
        best = rows.start + score[rows].argmax()
        selected[best] |= is_masked[best]
    return selected
