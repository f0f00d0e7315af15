"""A request's state for the next scheduler: taken from its row, and restored into one."""

from typing import Any

import numpy as np
import structlog

from services.scheduler.state.invalid_results import read_probabilities
from services.scheduler.state.output_buffer import MASKED
from services.scheduler.state.request_table import RequestEntry, RequestTable
from shared.arrays import INT32_BYTES, Bool, Int64, unpack_float32, unpack_int32
from shared.messages.checkpoints import Checkpoint
from shared.pinned import FREE

log = structlog.get_logger(__name__)

COLUMNS = (
    "steps", "recompute_steps", "threshold_tokens", "lowest_threshold", "migrations", "step_s", "attempts",
    "post_steps", "edits", "cached_tokens"
)  # fmt: skip


def take_checkpoints(table: RequestTable, rows: Int64, *, block_ended: Bool | bool = False) -> list[Checkpoint]:
    """The present states of the rows. `block_ended`: whether each row's last step has ended its current block. Shapes:
    [n], [n] or one for all."""
    begun = table.block_masks_left[rows] < table.block_masks[rows]
    stored = np.where(begun, table.block_stop(rows), table.block_start[rows])
    done = np.where(block_ended, stored, table.block_start[rows])
    values = [table.block_length, table.suspect, *(getattr(table, name) for name in COLUMNS)]
    columns = [column[rows].tolist() for column in values]
    names = "block_length", "is_suspect", *COLUMNS
    return [
        _checkpoint(table, row, done, stored, dict(zip(names, numbers, strict=True)))
        for row, done, stored, *numbers in zip(rows.tolist(), done.tolist(), stored.tolist(), *columns, strict=True)
    ]


def _checkpoint(table: RequestTable, row: int, done: int, stored: int, numbers: dict[str, Any]) -> Checkpoint:
    """The output has `done` tokens of whole blocks, and `stored` with those of the current block."""
    entry, output_ids = table.entry(row), table.output_ids(row)
    return Checkpoint(
        output_ids=output_ids[:done].tobytes(),
        block_ids=output_ids[done:stored].tobytes(),
        confidences=table.confidences(row)[:stored].tobytes(),
        top_tokens=entry.top_tokens.read(np.flatnonzero(output_ids[:stored] != MASKED)) if entry.top_tokens else None,
        choices=entry.choices.tobytes() if entry.choices is not None else b"",
        instances=list(entry.served_by),
        last_instance=entry.last_instance,
        steps_at=table.steps_at[row].tobytes(),
        tokens_at=table.tokens_at[row].tobytes(),
        **numbers,
    )


def resume(table: RequestTable, row: int, checkpoint: Checkpoint, vocab_size: int, mask_token_id: int) -> None:
    """Restore a checkpoint into a new row. A checkpoint that does not match the request is ignored: it belongs to an
    earlier request with the same id. A damaged one is ignored, too: the request starts again."""
    entry, offset, length = table.entry(row), table.block_offset.item(row), table.block_length.item(row)
    try:
        _check(checkpoint, entry, offset, vocab_size, mask_token_id)
        output_ids = np.concatenate([unpack_int32(checkpoint.output_ids), unpack_int32(checkpoint.block_ids)])
        stored = len(output_ids)
        is_whole = not stored or (stored + offset) % length == 0
        if checkpoint.block_length != length or not is_whole or stored > table.output_length[row]:
            return
        pinned = unpack_int32(entry.arrived.request.pinned)[:stored]
        if ((pinned != FREE) & (output_ids[: len(pinned)] != pinned)).any():
            return
        if entry.top_tokens is not None and checkpoint.top_tokens is not None:
            entry.top_tokens.write(checkpoint.top_tokens, vocab_size)
    except ValueError as error:
        log.warning("checkpoint ignored", request_id=entry.request_id, reason=str(error))
        return
    table.suspect[row] = checkpoint.is_suspect
    table.output_ids(row)[:stored] = output_ids
    if checkpoint.confidences:
        table.confidences(row)[:stored] = unpack_float32(checkpoint.confidences)
    table.find_block(row, len(checkpoint.output_ids) // INT32_BYTES if table.has_edits[row] else None)
    table.estimate_masks_left[row] = table.masks_left[row]
    for name in COLUMNS:
        getattr(table, name)[row] = getattr(checkpoint, name)
    table.first_step[row] = checkpoint.steps
    steps_at, tokens_at = unpack_int32(checkpoint.steps_at), unpack_int32(checkpoint.tokens_at)
    if len(steps_at) == len(tokens_at) == table.steps_at.shape[1]:  # the number of candidates is unchanged
        table.steps_at[row], table.tokens_at[row] = steps_at, tokens_at
    entry.choices = read_probabilities(checkpoint.choices, len(entry.arrived.choices)) if checkpoint.choices else None
    entry.served_by.extend(checkpoint.instances)
    if stored:
        entry.written_by.update(checkpoint.instances)
    entry.last_instance = checkpoint.last_instance


def _check(checkpoint: Checkpoint, entry: RequestEntry, offset: int, vocab_size: int, mask_token_id: int) -> None:
    """Raises: ValueError if the checkpoint is damaged."""
    columns = checkpoint.output_ids, checkpoint.block_ids, checkpoint.steps_at, checkpoint.tokens_at
    output_ids, block_ids, *counts = map(unpack_int32, columns)
    confidences = unpack_float32(checkpoint.confidences)
    may_lack = not checkpoint.confidences and not entry.arrived.request.logprobs
    has_all = len(confidences) == len(output_ids) + len(block_ids)
    block = checkpoint.block_length - (0 if len(output_ids) else offset)
    if len(block_ids) not in (0, block) or not (has_all or may_lack):
        raise ValueError("the current block is not whole, or a token has no confidence")
    if entry.top_tokens is not None and checkpoint.top_tokens is None:
        raise ValueError("it has no top tokens")
    tokens = np.concatenate([output_ids, block_ids[block_ids != MASKED]])
    if np.count_nonzero(tokens.view(np.uint32) >= vocab_size) or np.count_nonzero(tokens == mask_token_id):
        raise ValueError("a token is outside the vocabulary")
    if any(np.count_nonzero(column < 0) for column in counts):
        raise ValueError("a count is negative")
    numbers = checkpoint.threshold_tokens, checkpoint.lowest_threshold, checkpoint.step_s
    if not np.isfinite([*numbers, *confidences]).all():
        raise ValueError("a number is not finite")
