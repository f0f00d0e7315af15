"""Readers of a batch's predictions: the tokens that the step writes, and what only some clients want. They change no
request, so that a batch can run again without a request that makes one of them fail."""

import numpy as np

from services.worker.engine.choices import read_choices
from services.worker.engine.step_results import RanBatch, choose_tokens
from shared.arrays import pack_float32, pack_int32
from shared.messages.requests import Guesses
from shared.messages.steps import StepTopTokens


def read_drafts(ran: RanBatch) -> None:
    """The next drafts of canvases. Where the step ends the block, all predictions are selected."""
    entropies = ran.predictions.entropies
    if entropies is None:
        return
    drafts = []
    for part, rows in ran.rows:
        assert part.sequence.draft is not None, "it was fed"
        draft = part.sequence.draft.after(ran.predictions, rows, part.threshold)
        ran.predictions.selected[rows] = draft.has_ended(entropies[rows])
        drafts.append(draft)
    ran.drafts = drafts


def read_top_tokens(ran: RanBatch) -> None:
    """The most probable tokens at the positions that the step wrote."""
    top = ran.predictions.top
    if top is None:
        return
    written = np.split(ran.outcome.positions, np.cumsum(ran.outcome.counts)[:-1])
    for (part, rows), positions in zip(ran.rows, written, strict=True):
        sequence, k = part.sequence, part.sequence.top_logprobs
        if k:
            candidates = ran.batch.candidates[rows] - sequence.prompt_length
            at = np.searchsorted(top.rows, rows.start + np.searchsorted(candidates, positions))
            message = StepTopTokens(
                ticket=sequence.ticket,
                positions=pack_int32(positions),
                tokens=pack_int32(top.tokens[at, :k]),
                confidences=pack_float32(top.confidences[at, :k]),
            )
            ran.report.top_tokens.append(message)


def read_provisional_tokens(ran: RanBatch) -> None:
    """The predictions for the candidates that the step leaves masked, for clients that show the canvas."""
    for part, rows in ran.rows:
        sequence = part.sequence
        if sequence.wants_provisional:
            candidates = ran.batch.candidates[rows]
            is_masked = (ran.batch.current[rows] == ran.mask_token_id) & ~ran.chosen[rows]
            message = Guesses(
                step=part.step,
                positions=pack_int32(candidates[is_masked] - sequence.prompt_length),
                tokens=pack_int32(ran.predictions.tokens[rows][is_masked]),
                confidences=pack_float32(ran.predictions.confidences[rows][is_masked]),
            )
            ran.report.provisional.append((sequence.request_id, message))


READERS = (read_choices, read_drafts, choose_tokens, read_top_tokens, read_provisional_tokens)  # in this order
