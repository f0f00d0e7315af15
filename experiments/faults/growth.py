"""The memory and the open descriptors of the services, early and late in a run."""

import asyncio
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import median

import psutil

from experiments.faults.target import processes_of

SERVICES = ("gateway", "scheduler", "worker", "predictor", "reconfigurator", "nats-server", "postgres")
SAMPLE_EVERY_S = 5.0
MIN_AGE_S = 30.0  # of a process that is sampled: a start needs more memory for a while
MB = 1 << 20
MAX_GROWTH = 1.1  # of the memory, from the second to the last quarter
MAX_GROWTH_MB = 8.0  # allowed in any case
MAX_MORE_DESCRIPTORS = 8.0


@dataclass(frozen=True, slots=True)
class Sample:
    """One process at one time."""

    service: str
    at_s: float  # since the start of the run
    rss_mb: float
    descriptors: int


@dataclass(frozen=True, slots=True)
class Growth:
    """Medians of a service's processes in the second and in the last quarter of the run."""

    service: str
    rss_mb: tuple[float, float]
    descriptors: tuple[float, float]

    @property
    def is_flat(self) -> bool:
        (early_mb, late_mb), (early, late) = self.rss_mb, self.descriptors
        has_leak = late_mb > max(early_mb * MAX_GROWTH, early_mb + MAX_GROWTH_MB)
        return not has_leak and late <= early + MAX_MORE_DESCRIPTORS


async def sample(samples: list[Sample]) -> None:
    """Add samples of all services each SAMPLE_EVERY_S, until cancelled."""
    start_s = time.time()
    while True:
        now_s = time.time()
        for service in SERVICES:
            for process in processes_of(service):
                with suppress(psutil.NoSuchProcess):
                    if now_s - process.create_time() > MIN_AGE_S:
                        rss_mb = process.memory_info().rss / MB
                        samples.append(Sample(service, now_s - start_s, rss_mb, process.num_fds()))
        await asyncio.sleep(SAMPLE_EVERY_S)


def growths(samples: Sequence[Sample], length_s: float) -> list[Growth]:
    """Of each service that has samples in both quarters; `length_s` of the run."""
    found = []
    for service in SERVICES:
        own = [each for each in samples if each.service == service]
        early = [each for each in own if length_s / 4 <= each.at_s < length_s / 2]
        late = [each for each in own if each.at_s >= 3 * length_s / 4]
        if early and late:
            rss_mb = _median(each.rss_mb for each in early), _median(each.rss_mb for each in late)
            descriptors = _median(each.descriptors for each in early), _median(each.descriptors for each in late)
            found.append(Growth(service, rss_mb, descriptors))
    return found


def _median(values: Iterable[float]) -> float:
    return float(median(values))
