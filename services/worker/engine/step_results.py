"""Writes predicted tokens to the canvases, and builds the message about them."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

import numpy as np

from services.worker.engine.batch import Part
from services.worker.engine.canvas_draft import CanvasDraft
from services.worker.engine.step_jobs import StepJob
from services.worker.model.forward_batch import ForwardBatch, slices_of
from services.worker.model.model_runner import TokenPredictions
from shared.arrays import Bool, Float32, Float64, Int64, pack_float32, pack_int32, pack_int64
from shared.messages.requests import Guesses
from shared.messages.steps import StepChoices, StepFailure, StepResults, StepTopTokens


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """The tokens that a batch of steps unmasked or changed. Shapes: N requests; U tokens, grouped by request."""

    counts: Int64  # [N]
    positions: Int64  # [U], from the start of the output
    tokens: Int64  # [U]
    confidences: Float64  # [U]
    stats: Float32  # [N, 5]
    cached: Int64  # [N], see StepResults
    batch_tokens: int  # tokens fed


SHARES = np.array([0.25, 0.5, 0.75])  # of the quartiles and the median
_NONE, _NO_STATS = np.zeros(0, dtype=np.int64), np.zeros((0, 5), dtype=np.float32)
NO_OUTCOME = StepOutcome(_NONE, _NONE, _NONE, _NONE.astype(np.float64), _NO_STATS, _NONE, batch_tokens=0)


def joined(outcomes: Sequence[StepOutcome]) -> StepOutcome:
    """The outcome of batches that ran one after another in one iteration."""
    if len(outcomes) == 1:
        return outcomes[0]
    every = [NO_OUTCOME, *outcomes]
    names = [each.name for each in fields(StepOutcome) if each.name != "batch_tokens"]
    columns: dict[str, Any] = {name: np.concatenate([getattr(each, name) for each in every]) for name in names}
    return StepOutcome(**columns, batch_tokens=sum(each.batch_tokens for each in every))


@dataclass(slots=True)
class StepReport:
    """The report of an iteration on jobs that did not run, and its provisional tokens."""

    missing: list[int] = field(default_factory=list)  # tickets of jobs whose request is unknown
    failures: list[StepFailure] = field(default_factory=list)  # jobs that can never run
    provisional: list[tuple[str, Guesses]] = field(default_factory=list)  # with the request's id
    top_tokens: list[StepTopTokens] = field(default_factory=list)
    choices: list[StepChoices] = field(default_factory=list)

    def add(self, other: "StepReport") -> None:
        """Add what another report has."""
        for each in fields(self):
            getattr(self, each.name).extend(getattr(other, each.name))

    def fail(self, ticket: int, message: str, field: str | None = None) -> None:
        """`field`: of the request, if that is invalid."""
        self.failures.append(StepFailure(ticket=ticket, message=message, field=field))


@dataclass(frozen=True, slots=True)
class IterationResult:
    """One iteration. The sender builds its message, so that the next iteration can start earlier."""

    instance_id: str
    epoch: int
    outcome: StepOutcome | None
    jobs: Sequence[StepJob]
    report: StepReport
    latency_s: float  # seconds

    def message(self, sent_s: float = 0.0) -> StepResults:
        """The message to the scheduler. Units: sent_s is Unix time in seconds."""
        outcome = self.outcome or NO_OUTCOME
        return StepResults(
            instance_id=self.instance_id,
            epoch=self.epoch,
            tickets=pack_int64([job.ticket for job in self.jobs]),
            steps=pack_int32([job.step for job in self.jobs]),
            counts=pack_int32(outcome.counts),
            positions=pack_int32(outcome.positions),
            tokens=pack_int32(outcome.tokens),
            confidences=pack_float32(outcome.confidences),
            confidence_stats=pack_float32(outcome.stats),
            cached=pack_int32(outcome.cached) if outcome.cached.any() else b"",
            missing=pack_int64(self.report.missing),
            failures=self.report.failures,
            top_tokens=self.report.top_tokens,
            choices=self.report.choices,
            latency_s=self.latency_s,
            batch_tokens=outcome.batch_tokens,
            sent_s=sent_s,
        )


@dataclass
class RanBatch:
    """A batch with its predictions, for the readers of these."""

    parts: Sequence[Part]
    batch: ForwardBatch
    predictions: TokenPredictions
    mask_token_id: int
    report: StepReport = field(default_factory=StepReport)
    chosen: Bool = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))  # [R], once `choose_tokens` has run
    outcome: StepOutcome = NO_OUTCOME  # likewise
    drafts: Sequence[CanvasDraft] = ()  # of the parts, once `read_drafts` has run; empty: no canvases

    @cached_property
    def rows(self) -> list[tuple[Part, slice]]:
        """Each part with its candidates' indices."""
        return list(zip(self.parts, slices_of(self.batch.counts), strict=True))


def choose_tokens(ran: RanBatch) -> None:
    """Choose the tokens that the step writes."""
    parts, batch, predictions = ran.parts, ran.batch, ran.predictions
    chosen = ran.chosen = _selected_together(ran) if len(batch.constrained) else predictions.selected
    prompts = np.array([part.sequence.prompt_length for part in parts], dtype=np.int64)
    positions = batch.candidates - np.repeat(prompts, batch.counts)  # [R], from the start of the output
    known = np.full((len(parts), max(len(part.sequence.confidences) for part in parts)), np.nan, dtype=np.float32)
    for index, (part, rows) in enumerate(ran.rows):
        sequence = part.sequence
        known[index, : len(sequence.confidences)] = sequence.confidences
        unknown = rows.start + np.flatnonzero(np.isnan(known[index, positions[rows]])) if sequence.edits else rows
        known[index, positions[unknown]] = predictions.confidences[unknown]
    ran.outcome = StepOutcome(
        counts=np.add.reduceat(chosen.astype(np.int64), np.cumsum(batch.counts) - batch.counts),
        positions=positions[chosen],
        tokens=predictions.tokens[chosen],
        confidences=predictions.confidences[chosen],
        stats=summarize(known),
        cached=np.array([part.sequence.loaded_at_arrival for part in parts], dtype=np.int64),
        batch_tokens=len(batch.tokens),
    )


def write_tokens(ran: RanBatch) -> None:
    """Write the chosen tokens and their confidences to the sequences, which this modifies."""
    batch, predictions = ran.batch, ran.predictions
    for part, draft in zip(ran.parts, ran.drafts, strict=False):
        part.sequence.draft = draft
    for part, rows in ran.rows:
        sequence, written = part.sequence, rows.start + np.flatnonzero(ran.chosen[rows])
        positions = batch.candidates[written]
        sequence.canvas[positions] = predictions.tokens[written]
        sequence.confidences[positions - sequence.prompt_length] = predictions.confidences[written]
        if sequence.edits:
            began_without_masks = ran.mask_token_id not in batch.current[rows]
            sequence.count_step(part.block, len(written), began_without_masks=began_without_masks)
        part.mark_as_run()


def _selected_together(ran: RanBatch) -> Bool:
    """The selected candidates, of requests with a pattern only those that are allowed together, the most confident
    first. Shape: [R]."""
    predictions, selected = ran.predictions, ran.predictions.selected.copy()
    for part, own in ran.rows:
        sequence = part.sequence
        if sequence.constraint is None:
            continue
        rows = own.start + np.flatnonzero(selected[own])
        selected[rows] = sequence.constraint.choose(
            sequence.output_range(part.block)[0],
            ran.batch.candidates[rows] - sequence.prompt_length,
            predictions.tokens[rows],
            np.argsort(-predictions.confidences[rows], kind="stable"),  # of equal ones the first position
        )
    return selected


def summarize(known: Float32) -> Float32:
    """Min, lower quartile, median, mean and upper quartile of each request's known confidences.

    Shapes: known [N, O], NaN where unknown -> [N, 5]; not finite in a row without a known one, of a device that fails.
    """
    is_known = ~np.isnan(known)
    count = np.maximum(is_known.sum(axis=1), 1)[:, None]  # [N, 1]
    width = 1 + np.flatnonzero(is_known.any(axis=0)).max(initial=0)  # one long output makes the array wide
    ordered = np.sort(known[:, :width], axis=1)  # NaN sorts last
    place = (count - 1) * SHARES  # [N, 3]
    below = place.astype(np.int64)
    rows = np.arange(len(known))[:, None]
    low, high = ordered[rows, below], ordered[rows, np.minimum(below + 1, count - 1)]
    stats = np.empty((len(known), 5), dtype=np.float32)
    stats[:, 0] = ordered[:, 0]
    stats[:, [1, 2, 4]] = low + (high - low) * (place - below).astype(np.float32)
    # From the lowest on: the sum depends neither on the lengths of other outputs nor on the order of the steps.
    totals = np.cumsum(ordered, axis=1, dtype=np.float64)
    stats[:, 3] = totals[rows, count - 1][:, 0] / count[:, 0]
    return stats
