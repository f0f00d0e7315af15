"""The models of the load points: latency profile, steps table and cache."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from experiments.paper.files import PROFILE, ROOFLINE, ROOT, STEPS
from shared.profile import LatencyProfile, read_profile
from simulator.steps_table import read_steps
from simulator.unloaded_latency import unloaded_latency_s
from simulator.workload import ArrivalTrace

Cache = Literal["dual", "block"]


@dataclass(frozen=True, slots=True)
class ServedModel:
    """Units: block_length in tokens."""

    profile: Path
    steps: Path
    cache: Cache = "dual"
    block_length: int = 32

    def latency_profile(self) -> LatencyProfile:
        return _profile(self.profile)

    def unloaded_s(self, workload: ArrivalTrace) -> float:
        """The mean latency, in seconds, of requests that are alone."""
        return unloaded_latency_s(
            workload,
            self.latency_profile(),
            read_steps(self.steps),
            caching=True,
            exact=self.cache == "block",
            block_length=self.block_length,
        )


LLADA = ServedModel(PROFILE, STEPS)
LLADA_ROOFLINE = ServedModel(ROOFLINE, STEPS)
# The block-causal demo model on one thread of a CPU
BLOCK_DEMO = ServedModel(
    ROOT / "experiments/data/cpu-demo-block.csv", ROOT / "models/demo-block/steps.csv", cache="block", block_length=16
)


@cache
def _profile(path: Path) -> LatencyProfile:
    return read_profile(path)
