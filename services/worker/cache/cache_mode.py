"""What a step feeds to the model: the whole sequence, or the part that the cache mode computes anew.

Source: Fast-dLLM's prefix and dual caches. A block's first step computes the whole sequence and caches its keys and
values from before that step's tokens were written; the block's later steps compute the block and all after it
(prefix) or the block alone (dual), and nothing else is refreshed until the next block.
"""

import enum

import numpy as np

from services.worker.engine.batch import Part
from services.worker.engine.sequence_state import SequenceState
from services.worker.engine.step_jobs import StepJob
from services.worker.model.config import ModelConfig
from shared.messages.steps import StepKind


class CacheMode(enum.StrEnum):
    NONE = "none"
    PREFIX = "prefix"
    DUAL = "dual"


def part_for(job: StepJob, sequence: SequenceState, mode: CacheMode, config: ModelConfig) -> Part:
    """The part of a forward that runs this job. A cache step of a block that is not cached recomputes.

    Where logits are shifted, a later step cannot see the row that predicts its block's first position; so the
    recompute step decides that one, alone (as Dream's cached decoding does).
    """
    start, stop = sequence.block_range(job.block)
    if mode is CacheMode.NONE:
        return Part(sequence, job.step, job.block, 0, len(sequence.canvas))
    if job.kind == StepKind.CACHE and sequence.cached_block == job.block:
        end = stop if mode is CacheMode.DUAL else len(sequence.canvas)
        return Part(sequence, job.step, job.block, start, end)
    first_only = config.shifted_logits and bool(sequence.canvas[start] == config.mask_token_id)
    return Part(sequence, job.step, job.block, 0, len(sequence.canvas), first_only)


def validate_job(job: StepJob, sequence: SequenceState) -> str | None:
    """Why this job can never run; None if it can."""
    if not 0.0 <= job.threshold <= 1.0:
        return f"the threshold must be in [0, 1], got {job.threshold}"
    if job.kind not in (StepKind.RECOMPUTE, StepKind.CACHE):
        return f"the kind must be 0 (recompute) or 1 (cache), got {job.kind}"
    if not 0 <= job.block < sequence.num_blocks:
        return f"the block must be in 0..{sequence.num_blocks - 1}, got {job.block}"
    return None


def is_obsolete(job: StepJob, sequence: SequenceState, config: ModelConfig) -> bool:
    """Whether there is nothing to run: the job was sent ahead, and the step before it has ended the block or text."""
    start, stop = sequence.block_range(job.block)
    if not (sequence.canvas[start:stop] == config.mask_token_id).any():
        return True
    begins = job.block > 0 and job.kind == StepKind.RECOMPUTE
    return begins and bool(np.isin(sequence.canvas[sequence.prompt_length : start], sequence.end_ids).any())
