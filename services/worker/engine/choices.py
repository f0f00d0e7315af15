"""Computes the probability of each label of a request from one step's predictions at all masks of the block.

The score of a label is the product of the probabilities of its tokens and, if it is shorter than the block, of an end
token after it. The step unmasks a whole label and ends the text, so a label within one block takes one step. In later
blocks, only the labels that begin with the output so far are possible.
"""

from dataclasses import dataclass

import numpy as np

from services.worker.engine.sequence_state import SequenceState
from services.worker.engine.step_results import RanBatch
from shared.arrays import Float64, Int32, pack_float32
from shared.messages.steps import StepChoices

SMALLEST = float(np.finfo(np.float32).tiny)  # a confidence is above 0


@dataclass(frozen=True, slots=True)
class _ScoredLabel:
    """The part of a label within a block, and the log-probabilities of its tokens."""

    tokens: Int32  # [k]
    token_logprobs: Float64  # [k]
    end_logprobs: Float64  # [e], of each end token after the label; empty if the label fills the block

    @property
    def score(self) -> float:
        end = np.logaddexp.reduce(self.end_logprobs) if len(self.end_logprobs) else 0.0
        return float(self.token_logprobs.sum() + end)


def read_choices(ran: RanBatch) -> None:
    """Choose a label for each request that has labels: the predictions become its tokens, all selected. The report
    gets the probabilities of all labels."""
    predictions, num_read = ran.predictions, 0
    if predictions.scored is None:
        return
    for part, rows in ran.rows:
        sequence, (start, stop) = part.sequence, part.sequence.output_range(part.block)
        possible = sequence.possible_choices(start)
        if not len(possible):
            continue
        labels = []
        for label in (sequence.choices[index][start:stop] for index in possible):
            num_end_tokens = len(sequence.end_ids) if len(label) < stop - start else 0
            logprobs = predictions.scored[num_read : num_read + len(label) + num_end_tokens]
            labels.append(_ScoredLabel(label, logprobs[: len(label)], logprobs[len(label) :]))
            num_read += len(logprobs)
        scores = np.array([label.score for label in labels])
        written, count = labels[_draw(scores, sequence, part.step)], rows.stop - rows.start
        predictions.tokens[rows], predictions.confidences[rows] = _fill(written, count, sequence.end_ids)
        predictions.selected[rows] = True
        probabilities = np.zeros(len(sequence.choices))
        probabilities[possible] = np.exp(scores - np.logaddexp.reduce(scores))
        ran.report.choices.append(StepChoices(ticket=sequence.ticket, probabilities=pack_float32(probabilities)))


def _draw(scores: Float64, sequence: SequenceState, step: int) -> int:
    """The index of the label with the highest score; with a temperature, of one drawn by the scores."""
    if sequence.sampling.temperature > 0:
        random = np.random.default_rng((sequence.seed % (1 << 64), step))
        scores = scores / sequence.sampling.temperature + random.gumbel(size=len(scores))
    return int(scores.argmax())


def _fill(label: _ScoredLabel, count: int, end_ids: Int32) -> tuple[Int32, Float64]:
    """The tokens of a block and their confidences: those of the label, then the most probable end token."""
    tokens, confidences = np.empty(count, dtype=np.int32), np.ones(count)
    length = len(label.tokens)
    tokens[:length], confidences[:length] = label.tokens, np.exp(label.token_logprobs)
    if length < count:
        best = int(label.end_logprobs.argmax())
        tokens[length:], confidences[length] = end_ids[best], np.exp(label.end_logprobs[best])
    return tokens, confidences.clip(SMALLEST, 1.0)
