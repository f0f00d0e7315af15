"""A request's state at a block boundary: taken from its row, and restored into one."""

from services.scheduler.state.request_table import RequestTable
from shared.arrays import pack_int32, unpack_int32
from shared.messages.checkpoints import Checkpoint

COLUMNS = ("steps", "recompute_steps", "threshold_tokens", "lowest_threshold", "migrations", "step_s")


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


def resume(table: RequestTable, row: int, checkpoint: Checkpoint) -> None:
    """Restore finished blocks into a new row. A checkpoint that does not match the request is ignored: it belongs to an
    earlier request with the same id."""
    output_ids = unpack_int32(checkpoint.output_ids)
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
