"""The outputs of simulated requests: which positions each step unmasks, and the step results that report them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from shared.arrays import Float32, Int64, pack_float32, pack_int32
from shared.messages.steps import StepResults
from simulator.confidences import Confidences
from simulator.instance import HUNDREDTHS, REQUESTS, STEPS, TICKETS, Batch
from simulator.unmasking_model import UnmaskingTables

EPOCH = 1


@dataclass
class SimulatedOutputs:
    """Which masks are left of the output of each request, by the request's index in the workload."""

    _output_tokens: Int64  # [n]
    levels: Int64  # [n], of difficulty
    model: UnmaskingTables
    _confidences: Confidences | None  # needed if the scheduler's predictor reads them
    _random: np.random.Generator

    def __post_init__(self) -> None:
        self.masks_left = self._output_tokens.copy()

    def run_steps(self, batch: Batch) -> "FinishedSteps":
        """Unmask tokens in the order of their positions."""
        requests, hundredths = batch[REQUESTS], batch[HUNDREDTHS]
        levels, left = self.levels[requests], self.masks_left[requests]
        if self._confidences is None:
            counts = self.model.unmask(self._random, levels, hundredths, left)
            stats = np.zeros((len(requests), 5), dtype=np.float32)
        else:
            counts, stats = self._confidences.unmask(self._random, requests, levels, hundredths, left)
        ends = counts.cumsum()
        done = self._output_tokens[requests] - left
        self.masks_left[requests] = left - counts
        positions = np.arange(int(ends[-1])) + (done - ends + counts).repeat(counts)
        return FinishedSteps(batch, counts, ends, positions, stats)


@dataclass(frozen=True, slots=True)
class FinishedSteps:
    """The results of n steps, in the order of their batch."""

    batch: Batch
    counts: Int64  # [n], tokens unmasked by each
    ends: Int64  # [n], the cumulative counts
    positions: Int64  # [sum of counts], of the unmasked tokens in their outputs
    stats: Float32  # [n, 5], confidence statistics after each

    def by_instance(
        self, instance_ids: Sequence[str], latencies_s: Sequence[float], num_steps: Sequence[int]
    ) -> Iterator[StepResults]:
        """One message per iteration: its instance, its latency, and its number of steps of the batch, in order."""
        tickets, steps, counts = self.batch[TICKETS].tobytes(), pack_int32(self.batch[STEPS]), pack_int32(self.counts)
        positions, stats = pack_int32(self.positions), pack_float32(self.stats)
        zeros = bytes(len(positions))
        start = first = 0
        for instance_id, latency_s, number in zip(instance_ids, latencies_s, num_steps, strict=True):
            end = start + number
            last = int(self.ends[end - 1])
            yield StepResults(
                instance_id=instance_id,
                epoch=EPOCH,
                tickets=tickets[8 * start : 8 * end],
                steps=steps[4 * start : 4 * end],
                counts=counts[4 * start : 4 * end],
                positions=positions[4 * first : 4 * last],
                tokens=zeros[4 * first : 4 * last],
                confidences=zeros[4 * first : 4 * last],
                confidence_stats=stats[20 * start : 20 * end],
                latency_s=latency_s,
            )
            start, first = end, last
