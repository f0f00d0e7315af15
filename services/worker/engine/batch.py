"""The parts of a batch, one per request, and how they become the arrays of one forward."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from services.worker.cache.kv_allocator import Move
from services.worker.engine.sequence_state import NO_REGION, SequenceState
from services.worker.model.families import ModelConfig
from services.worker.model.forward_batch import NO_BITS, NONE, ForwardBatch, sampling_table, slices_of
from services.worker.model.logit_changes import LogitChanges
from shared.arrays import Bool, Int64, UInt8
from shared.messages.requests import Sampling


@dataclass(frozen=True, slots=True)
class Part:
    """One request's part of a forward: feed the canvas [start, stop), predict the masks of `block`."""

    sequence: SequenceState
    step: int
    block: int
    start: int
    stop: int
    first_only: bool = False  # predict only the block's first position
    rebuilds: bool = False  # before it, the cache is filled again as at the block's start
    threshold: float = 1.0  # the probability that unmasks a token

    @property
    def num_tokens(self) -> int:
        return self.stop - self.start

    def spans(self, config: ModelConfig) -> list[tuple[int, int]]:
        """The runs of fed tokens that attend to the same keys: the length of each, and the number of its keys. With
        spans of text, all but that of the block are of finished text. They have fixed ends within a request, so that
        they do not depend on what is fed."""
        if not config.is_block_causal:
            return [(self.num_tokens, len(self.sequence.canvas))]
        sequence, length = self.sequence, self.sequence.block_length
        if not config.has_text_spans:
            return [(length, start + length) for start in range(self.start, self.stop, length)]
        prompt = sequence.prompt_length
        ends = [*range(length, prompt, length), *range(prompt, self.stop + 1, length)]
        ends = [end for end in ends if end > self.start]
        return [(end - start, end) for start, end in zip([self.start, *ends], ends, strict=False)]

    @property
    def max_tokens(self) -> int:
        """The most tokens that a forward for this part feeds."""
        return len(self.sequence.canvas) if self.rebuilds else self.num_tokens

    @property
    def sampling(self) -> Sampling:
        """Of its tokens; labels are drawn whole. A canvas has its own temperature."""
        if self.sequence.draft is not None:
            return Sampling(temperature=self.sequence.draft.temperature)
        return Sampling() if self.sequence.choices else self.sequence.sampling

    @property
    def recomputes(self) -> bool:
        return self.num_tokens == len(self.sequence.canvas)

    def mark_as_run(self) -> None:
        """Note on the request that this part ran."""
        sequence = self.sequence
        sequence.last_step = self.step
        if self.recomputes or self.rebuilds:  # not before: it must be rebuilt again if memory lacks for the step
            sequence.cached_block = self.block
        if sequence.is_exact:
            sequence.exact_tokens = sequence.block_range(self.block)[0]

    @property
    def sort_key(self) -> tuple[bool, int, int, int]:
        """The order of the parts in a batch: equal lengths next to each other, as their keys lie."""
        return not self.recomputes, self.num_tokens, len(self.sequence.canvas), self.sequence.kv_start


def pack(parts: Sequence[Part], config: ModelConfig, moves: Sequence[Move] = ()) -> ForwardBatch:
    """Pack parts that are sorted by their `sort_key`, each with at least one candidate. Either all requests have a
    region of the cache, or none has."""
    lengths = np.array([part.num_tokens for part in parts], dtype=np.int64)
    starts = np.array([part.start for part in parts], dtype=np.int64)
    offsets = np.cumsum(lengths) - lengths - starts  # the row of each request's position 0, if it were fed
    candidates = [_candidates(part, config) for part in parts]
    counts = np.array([len(masks) for masks in candidates], dtype=np.int64)
    flat = np.concatenate(candidates)
    current = np.concatenate([part.sequence.canvas[own] for part, own in zip(parts, candidates, strict=True)])
    limits = np.array([part.threshold for part in parts], dtype=np.float64).repeat(counts)
    if any(part.sequence.edits for part in parts):
        edit = np.array([part.sequence.edit_threshold for part in parts], dtype=np.float64).repeat(counts)
        limits = np.where(current == config.mask_token_id, limits, edit)
    block_starts = np.array([part.sequence.block_range(part.block)[0] for part in parts], dtype=np.int64)
    if config.causal_text:
        predicted_by = flat - (flat == block_starts.repeat(counts))
    else:
        predicted_by = np.maximum(flat - 1, 0) if config.shifted_logits else flat
    positions = np.arange(lengths.sum()) - np.repeat(offsets, lengths)
    spans = [part.spans(config) for part in parts]
    key_starts, write_entries = np.cumsum(lengths) - lengths, positions[:0]
    if parts[0].sequence.kv_start != NO_REGION:
        key_starts = np.array([part.sequence.kv_start for part in parts], dtype=np.int64)
        write_entries = positions + np.repeat(key_starts, lengths)
    rows_of = slices_of(counts)
    constrained, allowed = _allowed(parts, rows_of)
    scored_rows, scored_tokens = _scored(parts, rows_of)
    batch = ForwardBatch(
        tokens=np.concatenate([part.sequence.canvas[part.start : part.stop] for part in parts]).astype(np.int64),
        positions=positions,
        lengths=np.array([length for own in spans for length, _ in own], dtype=np.int64),
        key_starts=np.repeat(key_starts, [len(own) for own in spans]),
        key_lengths=np.array([keys for own in spans for _, keys in own], dtype=np.int64),
        num_recompute=sum(part.recomputes for part in parts),
        write_entries=write_entries,
        moves=moves,
        counts=counts,
        candidates=flat,
        rows=predicted_by + np.repeat(offsets, counts),
        current=current.astype(np.int64),
        limits=limits,
        sampling=sampling_table([part.sampling for part in parts]),
        seeds=np.array([part.sequence.seed for part in parts], dtype=np.int64),
        steps=np.array([part.step for part in parts], dtype=np.int64),
        top_logprobs=np.array([part.sequence.top_logprobs for part in parts], dtype=np.int64),
        constrained=constrained,
        allowed=allowed,
        changes=_changes(parts, rows_of, config),
        scored_rows=scored_rows,
        scored_tokens=scored_tokens,
    )
    if not config.has_text_spans:
        return batch
    return _text_first(batch, parts, batch.key_lengths > np.repeat(block_starts, [len(own) for own in spans]))


def _text_first(batch: ForwardBatch, parts: Sequence[Part], is_block: Bool) -> ForwardBatch:
    """The batch with all finished text before the blocks, and drafts in place of masks. Shapes: is_block [S], of spans
    that lie one part's behind another's."""
    drafts = [draft for part in parts if (draft := part.sequence.draft) is not None]
    tokens = batch.tokens.copy()
    of_block = is_block.repeat(batch.lengths)
    if drafts:
        tokens[of_block] = np.concatenate([draft.tokens for draft in drafts])
    spans, rows = (np.argsort(values, kind="stable") for values in (is_block, of_block))
    row_now = np.empty_like(rows)
    row_now[rows] = np.arange(len(rows))
    return replace(
        batch,
        tokens=tokens[rows],
        positions=batch.positions[rows],
        write_entries=batch.write_entries[rows] if len(batch.write_entries) else batch.write_entries,
        lengths=batch.lengths[spans],
        key_starts=batch.key_starts[spans],
        key_lengths=batch.key_lengths[spans],
        rows=row_now[batch.rows],
        steps=np.array([draft.step for draft in drafts], dtype=np.int64) if drafts else batch.steps,
        num_text_spans=int(np.count_nonzero(~is_block)),
    )


def _changes(parts: Sequence[Part], rows_of: Sequence[slice], config: ModelConfig) -> list[LogitChanges]:
    """Those of the requests with penalties or a bias. Tokens that end the text do not count as written."""
    found = []
    for part, rows in zip(parts, rows_of, strict=True):
        sequence = part.sequence
        if sequence.changes is not None:
            uncounted = np.append(sequence.end_ids, (config.mask_token_id, config.eos_token_id))
            written = sequence.output[~np.isin(sequence.output, uncounted)]
            found.append(sequence.changes.after(written, rows))
    return found


def _scored(parts: Sequence[Part], rows_of: Sequence[slice]) -> tuple[Int64, Int64]:
    """By request, and by possible label: the label's tokens within the block, then all end tokens behind it."""
    rows, tokens = [NONE], [NONE]
    for part, own_rows in zip(parts, rows_of, strict=True):
        if not part.sequence.choices:
            continue
        sequence, (start, stop) = part.sequence, part.sequence.output_range(part.block)
        for own in (sequence.choices[index][start:stop] for index in sequence.possible_choices(start)):
            ends = sequence.end_ids if len(own) < stop - start else NONE
            rows.append(own_rows.start + np.append(np.arange(len(own)), np.full(len(ends), len(own))))
            tokens.append(np.append(own, ends))
    return np.concatenate(rows).astype(np.int64), np.concatenate(tokens).astype(np.int64)


def _allowed(parts: Sequence[Part], rows_of: Sequence[slice]) -> tuple[Int64, UInt8]:
    """The candidates of requests with a pattern, and the tokens allowed there. Shapes: [A], [A, ceil(V / 8)]."""
    rows, bits = [], []
    constraints = [part.sequence.constraint for part in parts]
    for constraint in constraints:
        if constraint is not None:
            constraint.begin_step()
    for part, constraint, own in zip(parts, constraints, rows_of, strict=True):
        if constraint is not None:
            rows.append(np.arange(own.start, own.stop))
            allowed = constraint.allowed(part.sequence.output, *part.sequence.output_range(part.block))
            bits.append(allowed[: own.stop - own.start])
    return (np.concatenate(rows), np.concatenate(bits)) if rows else (NONE, NO_BITS)


def _candidates(part: Part, config: ModelConfig) -> Int64:
    start, stop = part.sequence.block_range(part.block)
    if part.sequence.edits:
        return np.arange(max(start, part.sequence.prompt_length), stop)
    masks = start + np.flatnonzero(part.sequence.canvas[start:stop] == config.mask_token_id)
    if config.sub_block_length and not part.sequence.choices:
        sub_blocks = masks // config.sub_block_length
        masks = masks[sub_blocks == sub_blocks[:1]]
    return masks[:1] if part.first_only else masks
