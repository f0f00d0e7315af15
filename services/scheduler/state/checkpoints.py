"""A request's state at a block boundary: taken from its row, and restored into one."""

import numpy as np
import structlog
from msgspec.structs import replace

from services.scheduler.state.request_table import RequestTable
from shared.arrays import pack_int32, unpack_int32
from shared.messages.checkpoints import Checkpoint

log = structlog.get_logger(__name__)

COLUMNS = ("steps", "recompute_steps", "threshold_tokens", "lowest_threshold", "migrations", "step_s", "attempts")


def take_checkpoint(table: RequestTable, row: int) -> Checkpoint:
    """The finished blocks of a row."""
    done = int(table.block[row] * table.block_length[row])
    return Checkpoint(
        output_ids=pack_int32(table.output_ids(row)[:done]),
        block_length=int(table.block_length[row]),
        instances=list(table.entry(row).served_by),
        last_instance=table.entry(row).last_instance,
        steps_at=pack_int32(table.steps_at[row]),
        tokens_at=pack_int32(table.tokens_at[row]),
        steps=int(table.steps[row]),  # spelled out: this runs once per block
        recompute_steps=int(table.recompute_steps[row]),
        threshold_tokens=float(table.threshold_tokens[row]),
        lowest_threshold=float(table.lowest_threshold[row]),
        migrations=int(table.migrations[row]),
        step_s=float(table.step_s[row]),
    )


def with_attempts(table: RequestTable, row: int) -> Checkpoint:
    """The last checkpoint of a row, or one at its start, with its failed attempts."""
    checkpoint = table.entry(row).checkpoint or _at_start(int(table.block_length[row]))
    return replace(checkpoint, is_suspect=bool(table.suspect[row]), attempts=int(table.attempts[row]))


def _at_start(block_length: int) -> Checkpoint:
    return Checkpoint(
        output_ids=b"",
        block_length=block_length,
        steps=0,
        recompute_steps=0,
        threshold_tokens=0.0,
        lowest_threshold=1.0,
        migrations=0,
        instances=[],
    )


def resume(table: RequestTable, row: int, checkpoint: Checkpoint, vocab_size: int, mask_token_id: int) -> None:
    """Restore finished blocks into a new row. A checkpoint that does not match the request is ignored: it belongs to an
    earlier request with the same id. A damaged one is ignored, too: the request starts again."""
    reason = _damage(checkpoint, vocab_size, mask_token_id)
    if reason:
        log.warning("checkpoint ignored", request_id=table.entry(row).request_id, reason=reason)
        return
    output_ids = unpack_int32(checkpoint.output_ids)
    table.suspect[row] = checkpoint.is_suspect
    length, done = int(table.block_length[row]), len(output_ids)
    if checkpoint.block_length != length or done % length or done >= table.output_length[row]:
        return
    table.output_ids(row)[:done] = output_ids
    table.masks_left[row] -= done
    table.estimate_masks_left[row] -= done
    table.block[row] = done // length
    for name in COLUMNS:
        getattr(table, name)[row] = getattr(checkpoint, name)
    table.first_step[row] = checkpoint.steps
    steps_at, tokens_at = unpack_int32(checkpoint.steps_at), unpack_int32(checkpoint.tokens_at)
    if len(steps_at) == len(tokens_at) == table.steps_at.shape[1]:  # the number of candidates is unchanged
        table.steps_at[row], table.tokens_at[row] = steps_at, tokens_at
    table.entry(row).served_by.extend(checkpoint.instances)
    table.entry(row).last_instance = checkpoint.last_instance


def _damage(checkpoint: Checkpoint, vocab_size: int, mask_token_id: int) -> str:
    """Why the checkpoint cannot be used; empty if it can."""
    columns = checkpoint.output_ids, checkpoint.steps_at, checkpoint.tokens_at
    if any(len(column) % 4 for column in columns):
        return "a column is not of int32"
    output_ids, *counts = (unpack_int32(column) for column in columns)
    if np.count_nonzero(output_ids.view(np.uint32) >= vocab_size) or np.count_nonzero(output_ids == mask_token_id):
        return "a token is outside the vocabulary"
    if any(np.count_nonzero(column < 0) for column in counts):
        return "a count is negative"
    if not np.isfinite([checkpoint.threshold_tokens, checkpoint.lowest_threshold, checkpoint.step_s]).all():
        return "a number is not finite"
    return ""
