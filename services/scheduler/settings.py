"""Settings of the scheduler."""

from math import inf
from typing import Annotated, ClassVar, Literal

import msgspec

from services.scheduler.registry import DEFAULT_POLICY, PolicyName
from shared.bus.storage_limits import DISK_BYTES, MIN_DISK_BYTES
from shared.errors import BadInput
from shared.messages.cell import DEFAULT_THRESHOLDS, CacheName, Threshold
from shared.settings import Seconds, ServiceSettings

Margin = Annotated[float, msgspec.Meta(ge=0)]


class SchedulerSettings(ServiceSettings, frozen=True, kw_only=True):
    removed: ClassVar[tuple[str, ...]] = ("estimates", "load_control", "moves")

    model: str  # model directory or hub id; the scheduler reads its tokenizer and configuration
    model_name: str = ""  # model name in the API; empty: the directory's name
    policy: PolicyName | None = None  # scheduling policy; unset: dilaserve
    threshold: Threshold | None = None  # of the policies with one for all; unset: the highest candidate
    thresholds: tuple[Threshold, ...] = ()  # candidates of the other policies; empty: 0.5,0.6,0.7,0.8,0.9
    max_held_requests: Annotated[int, msgspec.Meta(ge=1)] = 20_000  # requests held at a time; the others wait
    default_slo_s: Seconds | None = None  # SLO in seconds of a request without one; unset: 5
    cache: CacheName | None = None  # KV cache mode of the workers; unset: block if the model is block-causal, else dual
    edit_threshold: Threshold | None = None  # LLaDA2.1's second threshold; 1: no token changes; unset: the model's
    predictor: str = ""  # directory of the predictor's card; empty: `predictor` in the model's directory
    margin_steps: Margin = 0.0  # steps of slack before a deadline (policy paper)
    guaranteed_priority: int | None = None  # requests of at least this priority keep all thresholds under load
    key_weights: tuple[str, ...] = ()  # KEY=WEIGHT: shares of API keys under load; 1 if not named (policy dilaserve)
    infeasible_level: Literal["common", "lowest"] = "common"  # of requests that miss at any threshold
    shed: bool = False  # refuse with 429 a request that cannot meet its SLO at its lowest threshold
    lookahead: Annotated[int, msgspec.Meta(ge=0, le=1)] = 1  # steps sent ahead of the last result
    step_timeout_s: Seconds = 60.0  # seconds after which an unanswered step goes to another instance
    max_stored_bytes: Annotated[int, msgspec.Meta(ge=MIN_DISK_BYTES)] = DISK_BYTES  # bytes of the cell on NATS's disk
    stream_replicas: Annotated[int, msgspec.Meta(ge=1, le=5)] = 1  # NATS servers that store each stream and bucket
    shared_prefixes: bool = False  # requests of different API keys may share cached prefixes
    control_tokens_in_messages: bool = False  # read control tokens in messages, which can then forge turns
    stop_at_eos: bool = True  # skip the blocks after the one that holds the end of text

    def __post_init__(self) -> None:
        _ = self.weight_of_key  # reports a wrong weight before the start

    @property
    def policy_name(self) -> str:
        """The policy, by default the default one."""
        return self.policy or DEFAULT_POLICY

    @property
    def candidates(self) -> tuple[float, ...]:
        """The candidate thresholds, ascending."""
        return tuple(sorted(set(self.thresholds or DEFAULT_THRESHOLDS)))

    @property
    def one_threshold(self) -> float:
        """The threshold of the policies with one for all: by default the highest candidate."""
        return self.candidates[-1] if self.threshold is None else self.threshold

    @property
    def weight_of_key(self) -> dict[str, float]:
        """The weights of the keys that have one. Raises: BadInput if an entry is malformed."""
        weights = {}
        for entry in self.key_weights:
            key, _, text = entry.rpartition("=")
            try:
                weight = float(text)
            except ValueError:
                weight = 0.0
            if not key or not 0 < weight < inf:
                message = f"DILASERVE_KEY_WEIGHTS: {entry!r}; accepted is KEY=WEIGHT, with a weight above 0"
                raise BadInput(message, "key_weights")
            weights[key] = weight
        return weights
