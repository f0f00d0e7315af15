"""The canary: a fixed batch whose predictions are known, so that a device that computes wrong is noticed. It runs at
intervals, and at once after a step whose values are not finite."""

import enum
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import structlog
import torch

from services.worker.engine.batch import Part, pack
from services.worker.engine.sequence_state import SequenceState
from services.worker.engine.step_results import NO_OUTCOME, IterationResult
from services.worker.model.families import ModelConfig
from services.worker.model.model_runner import ModelRunner, TokenPredictions
from shared.arrays import pack_float32, pack_int32, unpack_float32, unpack_int32
from shared.messages.models import CanaryRecord

log = structlog.get_logger(__name__)

SEQUENCES, PROMPT, BLOCK = 2, 32, 32  # number; tokens of each
MAX_DIFFERENCE = 0.01  # of a confidence, to the same instance's earlier one
MAX_DIFFERENCE_OF_INSTANCES = 0.1  # whose kernels may sum in another order
MIN_EQUAL_TOKENS = 0.9  # share of the tokens that two instances predict alike


class CanaryFaultKind(enum.StrEnum):
    """The kind of a fault, as a metric shows it."""

    NOT_FINITE = "not_finite"
    UNLIKE_EARLIER = "unlike_earlier"  # canary of the same instance
    UNLIKE_OTHERS = "unlike_others"  # instances' canary


@dataclass(frozen=True, slots=True)
class CanaryFault:
    """Why the device computes wrong."""

    kind: CanaryFaultKind
    reason: str  # with the measured values


@dataclass(frozen=True, slots=True)
class Canary:
    """The predictions of the fixed batch on one instance."""

    runner: ModelRunner
    expected: TokenPredictions

    @classmethod
    def measure(cls, runner: ModelRunner) -> "Canary":
        """Run the batch now; its predictions are those to expect."""
        return cls(runner, _run(runner))

    def record(self) -> CanaryRecord:
        """For other instances of the same model. Raises: ValueError if the predictions have a fault by themselves."""
        return CanaryRecord(
            tokens=pack_int32(self.expected.tokens), confidences=pack_float32(self.expected.confidences)
        )

    def check_alone(self) -> CanaryFault | None:
        """Check the expected predictions by themselves. Returns: None if they have no fault."""
        return _not_finite(self.expected)

    def check(self) -> CanaryFault | None:
        """Run the batch again. Returns: None if the device computes right."""
        found, expected = _run(self.runner), self.expected
        return _not_finite(found) or _difference(
            found, expected.tokens, expected.confidences, MAX_DIFFERENCE, 1.0, CanaryFaultKind.UNLIKE_EARLIER
        )

    def check_against(self, record: CanaryRecord) -> CanaryFault | None:
        """Compare with another instance. Returns: None if there is no difference."""
        tokens, confidences = unpack_int32(record.tokens), unpack_float32(record.confidences)
        if len(tokens) != len(self.expected.tokens):
            return None  # of another version
        max_difference, kind = MAX_DIFFERENCE_OF_INSTANCES, CanaryFaultKind.UNLIKE_OTHERS
        return _difference(self.expected, tokens, confidences, max_difference, MIN_EQUAL_TOKENS, kind)


class CanaryCheck:
    """Decides when the canary runs: under load at an interval, and at once after values that are not finite."""

    def __init__(self, canary: Canary, interval_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._canary = canary
        self._interval_s = interval_s
        self._clock = clock
        self._good_s = clock()  # when the last good one ended
        self._due_s = self._good_s + interval_s

    @property
    def unverified_s(self) -> float:
        """The time since the last good canary."""
        return self._clock() - self._good_s

    def after(self, result: IterationResult) -> CanaryFault | None:
        """Check after an iteration, before its result is sent. Returns: None if the device computes right, or if the
        canary is not due. Values that are not finite while the canary is good are the request's own."""
        confidences = result.outcome.confidences if result.outcome else NO_OUTCOME.confidences
        if self._clock() < self._due_s and np.isfinite(confidences).all():
            return None
        try:
            fault = self._canary.check()
            if fault is None:
                self._good_s = self._clock()
        except torch.OutOfMemoryError:
            fault = None
            log.warning("out of device memory in the canary; it runs again later")
        self._due_s = self._clock() + self._interval_s
        return fault


def _run(runner: ModelRunner) -> TokenPredictions:
    return runner.run(pack(_parts(runner.config), runner.config))


def _parts(config: ModelConfig) -> list[Part]:
    """Half a prompt and a block of masks each; of a model that denoises canvases, a canvas alone."""
    length = min(PROMPT + BLOCK, config.max_length)
    block = min(BLOCK, length // 2)
    random = np.random.default_rng(0)
    canvases = random.integers(0, config.vocab_size, (SEQUENCES, length)).astype(np.int32)
    canvases[canvases == config.mask_token_id] = (config.mask_token_id + 1) % config.vocab_size
    canvases[:, -block:] = config.mask_token_id
    unknown = np.full(block, np.nan, dtype=np.float32)
    if config.canvas:
        canvases, length = canvases[:, -block:], block
    sequences = [
        SequenceState(i, length - block, block, canvas, unknown, seed=i, rules=config.canvas)
        for i, canvas in enumerate(canvases)
    ]
    for sequence in sequences:
        sequence.begin_draft(0, config.vocab_size)
    return [Part(sequence, 0, 0, 0, length) for sequence in sequences]


def _not_finite(found: TokenPredictions) -> CanaryFault | None:
    if np.isfinite(found.confidences).all():
        return None
    return CanaryFault(CanaryFaultKind.NOT_FINITE, "it computes values that are not finite")


def _difference(
    found: TokenPredictions,
    tokens: np.ndarray[tuple[int], np.dtype[np.integer]],
    confidences: np.ndarray[tuple[int], np.dtype[np.floating]],
    max_difference: float,
    min_equal: float,
    kind: CanaryFaultKind,
) -> CanaryFault | None:
    equal = float((found.tokens == tokens).mean())
    difference = float(np.abs(found.confidences - confidences).max())
    if equal >= min_equal and difference <= max_difference:
        return None
    other = "that of other instances" if kind is CanaryFaultKind.UNLIKE_OTHERS else "its own earlier one"
    measured = f"{equal:.0%} equal tokens, confidences differ by {difference:.2g}"
    return CanaryFault(kind, f"its canary differs from {other}: {measured}")
