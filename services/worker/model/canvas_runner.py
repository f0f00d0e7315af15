"""Runs one batch of a model that denoises canvases: arrays in, draws, predictions and entropies out.

The prediction of each step stays on the device, as an embedding at the canvas's entries of the cache.
Source: DiffusionGemma's decoding in transformers. Random numbers are those of `sampling`.
Shape letters: R tokens of canvases, V columns of a part of the vocabulary, W width.
"""

from collections.abc import Callable
from math import gcd

import numpy as np
import torch
from torch import Tensor

from services.worker.cache.kv_store import KvStore
from services.worker.model.canvas_decoder import CanvasDecoder
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
from services.worker.model.sampling import Noise, Vocabulary, combine_top, gumbel, mix, uniform, unit_interval
from services.worker.model.span_attention import span_arrays, span_attention, spans_of

# Ids in place of a token's in the hash of a random number
RANDOM_TOKEN = -1  # of the number that chooses any token of the vocabulary
IN_GROUP = -2  # of the number that chooses a token of a group
MAX_GROUP, MAX_RANKS = 256, 16  # groups have the same tokens on any number of ranks that divides MAX_RANKS


def random_tokens(seed: int, step: int, positions: Tensor, vocab_size: int) -> Tensor:
    """The random tokens that a step of a canvas reads, any of the vocabulary. Shapes: positions int64 [n] -> [n]."""
    row = mix(mix(mix(torch.tensor(seed)) + step) + positions)
    return (unit_interval(mix(row + mix(torch.tensor(RANDOM_TOKEN)))) * vocab_size).long()


def read_canvas(
    logits: Tensor, noise: Noise, vocabulary: Vocabulary, embedding_of: Callable[[Tensor], Tensor], canvas: int
) -> tuple[Tensor, Tensor]:
    """Read this rank's columns of the logits, one canvas at a time, as its result must not depend on its batch.

    Shapes: logits [R, V], `canvas` rows of one canvas -> float64 [6, R]: score and id of the drawn token, the highest
    logit at the temperature and its id, the logsumexp, and the mean logit by probability; and the mean embedding
    [R, W], by probabilities over this rank's columns.
    """
    chunks = [slice(first, first + canvas) for first in range(0, len(logits), canvas)]
    parts, embeddings = zip(
        *(_read_rows(logits, noise, vocabulary, embedding_of, chunk) for chunk in chunks), strict=True
    )
    return torch.cat(parts, dim=1), torch.cat(embeddings)


def _read_rows(
    logits: Tensor, noise: Noise, vocabulary: Vocabulary, embedding_of: Callable[[Tensor], Tensor], chunk: slice
) -> tuple[Tensor, Tensor]:
    own = noise.of_rows(chunk)
    values = logits[chunk] / own.temperature.float().unsqueeze(1)  # [rows, V]
    best, column = values.max(dim=-1)
    values -= best.unsqueeze(1)
    terms = values.exp()
    score, drawn = _draw(terms, own, vocabulary)
    sums = terms.sum(dim=-1, keepdim=True)
    terms /= sums
    mean = best.double() + values.mul_(terms).sum(dim=-1).double()
    total = best.double() + sums.squeeze(1).double().log()
    ids = ((index + vocabulary.first).double() for index in (drawn, column))
    return torch.stack((score + best, next(ids), best.double(), next(ids), total, mean)), embedding_of(terms)


def _draw(terms: Tensor, noise: Noise, vocabulary: Vocabulary) -> tuple[Tensor, Tensor]:
    """Draw a column of each row, with a probability in proportion to `terms`.

    First a group of neighbouring columns is drawn by Gumbel numbers, then a column of it by the cumulative sum. So a
    row takes a random number for each group, not for each token. Shapes: terms [R, V] -> float64 scores [R], of which
    the highest one of all ranks wins, and columns [R].
    """
    vocabulary_size = vocabulary.mask_token_id  # the id of the mask is the first one behind the vocabulary
    size = gcd(MAX_GROUP, vocabulary_size // gcd(MAX_RANKS, vocabulary_size))
    groups = terms.view(len(terms), -1, size)  # [R, V / size, size]
    ids = torch.arange(groups.shape[1], device=terms.device) + vocabulary.first // size
    score, group = (groups.sum(dim=-1).double().log() + gumbel(noise, ids)).max(dim=-1)
    cumulative = groups[torch.arange(len(group), device=terms.device), group].double().cumsum(dim=-1)  # [R, size]
    target = uniform(noise, torch.full((1,), IN_GROUP, device=terms.device)) * cumulative[:, -1:]  # [R, 1]
    return score, group * size + (cumulative <= target).sum(dim=-1).clamp_max(size - 1)


def combine_parts(parts: Tensor, embeddings: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Join the parts of the vocabulary, of which each rank has read one.

    Shapes: parts [ranks, 6, R], embeddings [ranks, R, W] -> float64 [4, R]: the draw, the most probable token, its
    probability, the entropy in nats; the logsumexp [R]; the mean embedding [R, W].
    """
    score, drawn, best, token, totals, means = parts.unbind(dim=1)  # [ranks, R] each
    total = totals.logsumexp(dim=0)
    shares = (totals - total).exp()
    winner, likeliest = score.argmax(dim=0, keepdim=True), best.argmax(dim=0, keepdim=True)
    chosen = torch.stack(
        (
            drawn.gather(0, winner).squeeze(0),
            token.gather(0, likeliest).squeeze(0),
            (best.gather(0, likeliest).squeeze(0) - total).exp(),
            (total - (shares * means).sum(dim=0)).clamp_min(0.0),
        )
    )
    if len(parts) == 1:
        return chosen, total, embeddings[0]
    return chosen, total, (shares.unsqueeze(-1) * embeddings).sum(dim=0).to(embeddings.dtype)


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
        attend = span_attention(
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
