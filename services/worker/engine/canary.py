"""The canary: a fixed batch whose predictions are known, so that a device that computes wrong is noticed."""

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
from shared.arrays import Float32, Int32
from shared.messages.models import CanaryRecord

log = structlog.get_logger(__name__)

SEQUENCES, PROMPT, BLOCK = 2, 32, 32  # number; tokens of each
MAX_DIFFERENCE = 0.01  # of a confidence, to the same instance's earlier one
MAX_DIFFERENCE_OF_INSTANCES = 0.1  # whose kernels may sum in another order
MIN_EQUAL_TOKENS = 0.9  # share of the tokens that two instances predict alike


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
        """For other instances of the same model."""
        tokens, confidences = self.expected.tokens, self.expected.confidences
        return CanaryRecord(
            tokens=tokens.astype(np.int32).tobytes(), confidences=confidences.astype(np.float32).tobytes()
        )

    def check(self) -> str:
        """Run the batch again. Returns: why the device computes wrong; empty if it does not."""
        found = _run(self.runner)
        return _wrong(found.confidences) or _difference(
            found, self.expected.tokens, self.expected.confidences, MAX_DIFFERENCE, 1.0, "its own earlier one"
        )

    def check_against(self, record: CanaryRecord) -> str:
        """Compare with another instance. Returns: the difference; empty if there is none."""
        tokens: Int32 = np.frombuffer(record.tokens, dtype=np.int32)
        confidences: Float32 = np.frombuffer(record.confidences, dtype=np.float32)
        if len(tokens) != len(self.expected.tokens) or len(confidences) != len(tokens):
            return ""  # of another version
        return _wrong(self.expected.confidences) or _difference(
            self.expected, tokens, confidences, MAX_DIFFERENCE_OF_INSTANCES, MIN_EQUAL_TOKENS, "that of other instances"
        )


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

    def after(self, result: IterationResult) -> str:
        """Check after an iteration, before its result is sent. Returns: why the device computes wrong; empty if it does
        not, or if the canary is not due. Values that are not finite while the canary is good are the request's own."""
        confidences = result.outcome.confidences if result.outcome else NO_OUTCOME.confidences
        if self._clock() < self._due_s and np.isfinite(confidences).all():
            return ""
        try:
            reason = self._canary.check()
            if not reason:
                self._good_s = self._clock()
        except torch.OutOfMemoryError:
            reason = ""
            log.warning("out of device memory in the canary; it runs again later")
        self._due_s = self._clock() + self._interval_s
        return reason


def _run(runner: ModelRunner) -> TokenPredictions:
    return runner.run(pack(_parts(runner.config), runner.config))


def _parts(config: ModelConfig) -> list[Part]:
    length = min(PROMPT + BLOCK, config.max_length)
    block = min(BLOCK, length // 2)
    random = np.random.default_rng(0)
    canvases = random.integers(0, config.vocab_size, (SEQUENCES, length)).astype(np.int32)
    canvases[canvases == config.mask_token_id] = (config.mask_token_id + 1) % config.vocab_size
    canvases[:, -block:] = config.mask_token_id
    unknown = np.full(block, np.nan, dtype=np.float32)
    sequences = [SequenceState(i, length - block, block, canvas, unknown, 0.0, i) for i, canvas in enumerate(canvases)]
    return [Part(sequence, 0, 0, 0, length) for sequence in sequences]


def _wrong(confidences: np.ndarray[tuple[int], np.dtype[np.floating]]) -> str:
    return "" if np.isfinite(confidences).all() else "it computes values that are not finite"


def _difference(
    found: TokenPredictions,
    tokens: np.ndarray[tuple[int], np.dtype[np.integer]],
    confidences: np.ndarray[tuple[int], np.dtype[np.floating]],
    max_difference: float,
    min_equal: float,
    other: str,
) -> str:
    equal = float((found.tokens == tokens).mean())
    difference = float(np.abs(found.confidences - confidences).max())
    if equal >= min_equal and difference <= max_difference:
        return ""
    return f"its canary differs from {other}: {equal:.0%} equal tokens, confidences differ by {difference:.2g}"
