"""Decides which tokens a step feeds to the model: the whole sequence, or the part that the cache mode recomputes.

Source of the modes prefix and dual: Fast-dLLM. A block's first step computes the whole sequence and caches its keys and
values as they are before the step's tokens are written. The block's later steps compute the block and all tokens after
it (prefix) or the block alone (dual). The cached values stay until the next block.

A request that moves within a block lacks them. They are computed again from the canvas as it was at the block's start,
with the whole block masked but for its pinned tokens, so that the request gets the same text as without the move.

Mode block is that of block-causal models, whose finished blocks have exact keys and values. A step feeds its block, and
before it all tokens that are not cached: the block that has just ended, or on arrival the text so far, except a prefix
that an earlier request had in common.
"""

import enum
from dataclasses import replace
from functools import partial

import numpy as np

from services.worker.engine.batch import Part
from services.worker.engine.sequence_state import SequenceState
from services.worker.engine.step_jobs import StepJob
from services.worker.model.families import ModelConfig
from shared.errors import BadInput
from shared.messages.cell import caches_of
from shared.messages.steps import StepKind


class CacheMode(enum.StrEnum):
    NONE = "none"
    PREFIX = "prefix"
    DUAL = "dual"
    BLOCK = "block"


def check_mode(mode: CacheMode, config: ModelConfig) -> None:
    """Raises: BadInput if the model cannot be served with this cache."""
    possible = caches_of(is_block_causal=config.is_block_causal, begins_at_prompt=config.has_text_spans)
    if mode.value not in possible:
        kind = "block-causal" if config.is_block_causal else "not block-causal"
        names = ", ".join(possible)
        raise BadInput(
            f"the cache {mode} is not possible: {config.family} models are {kind}; possible: {names}", "cache"
        )


def part_for(job: StepJob, sequence: SequenceState, mode: CacheMode, config: ModelConfig) -> Part:
    """The part of a forward that runs this job. If the block is not cached, the first step recomputes, and a later one
    rebuilds the cache.

    With shifted logits, a cache step lacks the row that predicts its block's first position. So the recompute step
    decides only that position (as Dream's cached decoding does), and so does the first step of a block-causal block,
    which feeds the text before it (as Fast-dLLM v2 and Nemotron-Labs-Diffusion do).
    """
    part = partial(Part, sequence, job.step, job.block, threshold=job.threshold)
    start, stop = sequence.block_range(job.block)
    is_predicted_before = config.shifted_logits or config.causal_text
    needs_row_before = is_predicted_before and bool(sequence.canvas[start] == config.mask_token_id)
    if config.is_block_causal:
        is_cached = mode is not CacheMode.NONE and job.kind == StepKind.CACHE
        first = sequence.exact_tokens if is_cached else sequence.loaded_at_arrival
        if not needs_row_before:
            return part(first, stop)
        first = min(first, sequence.span_before(start))
        return part(first, stop) if sequence.choices else part(first, start, first_only=True)
    if mode is CacheMode.NONE:
        return part(0, len(sequence.canvas))
    is_cached = sequence.cached_block == job.block
    rebuilds = not is_cached and not _is_unwritten(sequence, job.block, config)
    if rebuilds or (is_cached and job.kind == StepKind.CACHE):
        end = stop if mode is CacheMode.DUAL else len(sequence.canvas)
        return part(start, end, rebuilds=rebuilds)
    return part(0, len(sequence.canvas), first_only=needs_row_before and not sequence.choices)


def rebuild_part(part: Part, config: ModelConfig) -> Part:
    """The recompute step that fills the cache as at the start of this part's block."""
    start, stop = part.sequence.block_range(part.block)
    canvas = part.sequence.canvas.copy()
    canvas[start:stop] = part.sequence.unwritten_block(part.block, config.mask_token_id)
    return Part(replace(part.sequence, canvas=canvas, constraint=None), part.step, part.block, 0, len(canvas))


def _is_unwritten(sequence: SequenceState, block: int, config: ModelConfig) -> bool:
    """Whether no step has written a token of the block."""
    start, stop = sequence.block_range(block)
    tokens = sequence.canvas[start:stop]
    if not len(sequence.pinned):
        return bool((tokens == config.mask_token_id).all())
    return np.array_equal(tokens, sequence.unwritten_block(block, config.mask_token_id))


def check_job(job: StepJob, sequence: SequenceState) -> None:
    """Raises: BadInput if this job can never run."""
    if not 0.0 <= job.threshold <= 1.0:
        raise BadInput(f"the threshold must be in [0, 1], got {job.threshold}")
    if job.kind not in (StepKind.RECOMPUTE, StepKind.CACHE):
        raise BadInput(f"the kind must be 0 (recompute) or 1 (cache), got {job.kind}")
    if not 0 <= job.block < sequence.num_blocks:
        raise BadInput(f"the block must be in 0..{sequence.num_blocks - 1}, got {job.block}")


def is_obsolete(job: StepJob, sequence: SequenceState, config: ModelConfig) -> bool:
    """Whether a job that was sent ahead has nothing to run: the step before it ended the block or the text."""
    start, stop = sequence.block_range(job.block)
    has_masks = bool((sequence.canvas[start:stop] == config.mask_token_id).any())
    if job.block < sequence.ended_blocks if sequence.edits else not has_masks:
        return True
    begins = job.block > 0 and _is_unwritten(sequence, job.block, config)
    return begins and bool(np.isin(sequence.canvas[sequence.prompt_length : start], sequence.end_ids).any())
