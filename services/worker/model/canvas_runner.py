"""Runs one batch of a model that denoises canvases: arrays in, draws, predictions and entropies out.

The prediction of each step stays on the device, as an embedding at the canvas's entries of the cache.
"""

import numpy as np
import torch
from torch import Tensor

from services.worker.cache.kv_store import KvStore
from services.worker.model.canvas_attention import canvas_attention, span_arrays, spans_of
from services.worker.model.canvas_decoder import CanvasDecoder
from services.worker.model.canvas_sampling import combine_parts, read_canvas
from services.worker.model.decoder import PackedDecoder
from services.worker.model.forward_batch import ForwardBatch
from services.worker.model.logit_changes import change_logits
from services.worker.model.model_runner import (
    NO_TOKEN,
    Gather,
    Runner,
    TokenPredictions,
    TopPredictions,
    rows_with_top_tokens,
    to_host,
)
from services.worker.model.top_logits import combine_top


class CanvasRunner(Runner):
    """A decoder of canvases, or one rank's share of it, with its cache, on one device."""

    decoder: CanvasDecoder

    @torch.inference_mode()
    def _run(self, batch: ForwardBatch) -> TokenPredictions:
        if self._store is not None:
            self._store.move(batch.moves)
        hidden, last = self._read(batch)
        logits = self.decoder.logits(hidden)
        if batch.changes:
            change_logits(logits, batch.changes, self._vocabulary.first, self._changes_transfer.put)
        noise = self._noise(batch)
        assert noise is not None, "a canvas has a temperature"
        top_rows = rows_with_top_tokens(batch)
        [rows_of_top] = self._read_transfer.put([top_rows])
        top = self._top_logits(logits, batch, rows_of_top, noise) if len(top_rows) else None
        parts, embeddings = read_canvas(
            logits, noise, self._vocabulary, self.decoder.embedding_of, int(batch.counts[0])
        )
        # In this order: the last one shows whether a rank is out of memory.
        gathered = [self._gather(x) if self._gather else x.unsqueeze(0) for x in (embeddings, parts)]
        chosen, total, embedding = combine_parts(gathered[1], gathered[0])
        if self._gather:
            chosen[1].masked_fill_((gathered[1][:, 3] == NO_TOKEN).any(dim=0), NO_TOKEN)
        last.write(embedding)
        found = [chosen] if top is None else [chosen, combine_top(top, total[rows_of_top])]
        drawn, tokens, confidences, entropies, *others = to_host(found)
        if self._gather and tokens.min() == NO_TOKEN:
            raise torch.OutOfMemoryError("another rank is out of memory")
        return TokenPredictions(
            tokens.astype(np.int64),
            confidences,
            np.zeros(len(tokens), dtype=np.bool_),
            TopPredictions.read(top_rows, others),
            drawn=drawn.astype(np.int64),
            entropies=entropies,
        )

    def _read(self, batch: ForwardBatch) -> tuple[Tensor, "_LastPredictions"]:
        """The hidden states [R, W] of the canvases' tokens, and the predictions of the steps before."""
        steps = np.repeat(batch.steps, batch.counts)
        fixed = [batch.tokens, batch.positions, batch.rows, batch.write_entries, steps]
        tokens, positions, rows, entries, steps_of, *spans = self._transfer.put(
            [*fixed, *span_arrays(batch, self.config)]
        )
        last = _LastPredictions(self._store, self.config.num_layers, entries[len(tokens) - len(rows) :], steps_of)
        attend = canvas_attention(
            spans_of(batch, self.config, iter(spans)), entries, self._store, self.config, self.attention
        )
        predicted = last.read(self.decoder.embed.weight.new_zeros(len(rows), self.config.width))
        return self.decoder.hidden(tokens, positions, predicted, attend, rows), last


class _LastPredictions:
    """The predictions of earlier steps at the tokens of canvases: the last one, and room for that of this step."""

    def __init__(self, store: KvStore | None, layer: int, entries: Tensor, steps: Tensor) -> None:
        """Shapes: entries [R] or without a cache [0], steps [R]."""
        self._store = store if len(entries) else None
        self._layer, self._entries, self._steps = layer, entries, steps

    def read(self, zeros: Tensor) -> Tensor:
        """Shapes: [R, W] -> [R, W]; zeros in first steps."""
        if self._store is None:
            return zeros
        both, places = self._store.read(self._layer, self._entries), torch.arange(len(zeros), device=zeros.device)
        return torch.where(self._steps.unsqueeze(1) > 0, both[places, (self._steps + 1) % 2], zeros)

    def write(self, predicted: Tensor) -> None:
        """Shapes: [R, W]."""
        if self._store is not None:
            both = self._store.read(self._layer, self._entries)
            both[torch.arange(len(both), device=both.device), self._steps % 2] = predicted
            self._store.write(self._layer, self._entries, both)


def new_runner(
    decoder: PackedDecoder, cache_tokens: int = 0, gather: Gather | None = None, attention: str = "auto"
) -> Runner:
    """The runner of a decoder's family. Raises: ValueError if `attention` names a kernel that cannot run here."""
    if isinstance(decoder, CanvasDecoder):
        return CanvasRunner(decoder, cache_tokens, gather, attention)
    return Runner(decoder, cache_tokens, gather, attention)
