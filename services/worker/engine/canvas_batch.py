"""The batch of a model that denoises canvases: drafts in place of masks, and all finished text before them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from services.worker.model.forward_batch import ForwardBatch

if TYPE_CHECKING:
    from services.worker.engine.batch import Part


def with_drafts(batch: ForwardBatch, parts: Sequence["Part"], num_spans: Sequence[int]) -> ForwardBatch:
    """`batch` has the spans of one part behind those of another, `num_spans` of each; the last one is its canvas."""
    drafts = [part.sequence.draft for part in parts]
    is_canvas = np.zeros(len(batch.lengths), dtype=np.bool_)
    is_canvas[np.cumsum(num_spans) - 1] = True
    tokens = batch.tokens.copy()
    of_canvas = is_canvas.repeat(batch.lengths)
    tokens[of_canvas] = np.concatenate([draft.tokens for draft in drafts if draft is not None])
    spans, rows = (np.argsort(values, kind="stable") for values in (is_canvas, of_canvas))
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
        steps=np.array([draft.step for draft in drafts if draft is not None], dtype=np.int64),
        num_text_spans=int(np.count_nonzero(~is_canvas)),
    )
