"""The configuration of a cell."""

from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from shared.errors import BadInput
from shared.messages.numbers import Positive

if TYPE_CHECKING:
    from shared.messages.instances import ModelCard  # imports NumPy, and commands name the caches in their help

DEFAULT_SLO_S = 5.0
DEFAULT_THRESHOLDS = (0.5, 0.6, 0.7, 0.8, 0.9)
DEFAULT_THRESHOLDS_TEXT = ",".join(map(str, DEFAULT_THRESHOLDS))  # as options and variables have them

Threshold = Annotated[float, msgspec.Meta(ge=0, le=1)]
CacheName = Literal["none", "prefix", "dual", "block"]
CACHES: tuple[CacheName, ...] = ("dual", "prefix", "none")  # of a model, the fastest first
BLOCK_CAUSAL_CACHES: tuple[CacheName, ...] = ("block", "none")
TEXT_FIRST_CACHES: tuple[CacheName, ...] = ("block",)  # of a model that feeds finished text apart from blocks


def caches_of(*, is_block_causal: bool, begins_at_prompt: bool) -> tuple[CacheName, ...]:
    """The KV caches with which a model can be served, the fastest first. `begins_at_prompt`: as in ModelCard."""
    return TEXT_FIRST_CACHES if begins_at_prompt else BLOCK_CAUSAL_CACHES if is_block_causal else CACHES


def cache_of(named: CacheName | None, model: "ModelCard", setting: str = "DILASERVE_CACHE=") -> CacheName:
    """The KV cache that `setting` names; None: the fastest one of the model. Raises: BadInput if the model cannot use
    it."""
    possible = caches_of(is_block_causal=model.block_length > 0, begins_at_prompt=model.begins_at_prompt)
    if named is not None and named not in possible:
        raise BadInput(f"{setting}{named}: not possible with this model; accepted: {', '.join(possible)}", "cache")
    return named or possible[0]


def is_exact(cache: CacheName | None) -> bool:
    """Whether finished blocks are cached for good, so that a request recomputes only where it arrives."""
    return cache == "block"


class CellConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Scheduler -> all services: the values that every service of a cell uses, from the environment of its scheduler.

    Subject: dilaserve.<cell>.config. Does not expire.
    """

    model: str  # name in the API
    policy: str
    thresholds: Annotated[tuple[Threshold, ...], msgspec.Meta(min_length=1)] = DEFAULT_THRESHOLDS  # ascending
    threshold: Threshold | None = None  # of a policy with one threshold for all requests; None: it uses `thresholds`
    default_slo_s: Positive = DEFAULT_SLO_S  # of requests without an SLO
    cache: CacheName  # KV cache mode
    edit_threshold: Threshold = 1.0  # of requests without one; 1: no token changes once it is unmasked
    predictor: str = ""  # version of the step predictor; empty: the policy asks none

    @property
    def used_thresholds(self) -> tuple[float, ...]:
        """Those that the policy gives to requests."""
        return self.thresholds if self.threshold is None else (self.threshold,)
