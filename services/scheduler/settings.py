"""Settings of the scheduler."""

from math import inf
from typing import Annotated, Literal

import msgspec

from services.scheduler.policies import MigrationPolicy
from services.scheduler.registry import POLICY_WITHOUT_PREDICTOR, PolicyName
from shared.bus.storage_limits import DISK_BYTES, MIN_DISK_BYTES
from shared.errors import BadInput
from shared.settings import Seconds, ServiceSettings

Threshold = Annotated[float, msgspec.Meta(ge=0, le=1)]
Margin = Annotated[float, msgspec.Meta(ge=0)]


class SchedulerSettings(ServiceSettings, frozen=True, kw_only=True):
    model: str  # model directory or hub id; the scheduler reads its tokenizer and configuration
    model_name: str = ""  # model name in the API; empty: the directory's name
    policy: PolicyName = POLICY_WITHOUT_PREDICTOR  # scheduling policy
    threshold: Threshold = 0.9  # confidence threshold of the policies with a fixed one
    thresholds: tuple[Threshold, ...] = (0.5, 0.6, 0.7, 0.8, 0.9)  # candidate thresholds of the other policies
    max_held_requests: Annotated[int, msgspec.Meta(ge=1)] = 20_000  # requests held at a time; the others wait
    default_slo_s: Seconds = 5.0  # SLO in seconds from arrival of a request without one
    cache: Literal["none", "prefix", "dual", "block"] = "none"  # KV cache mode; as the workers'
    predictor: str = ""  # directory of the predictor's card; empty: `predictor` in the model's directory
    estimates: Literal["predictor", "one-shot"] = "predictor"  # source of a request's remaining steps
    load_control: bool = True  # lower the highest allowed threshold under load
    margin_steps: Margin = 0.0  # steps of slack before a deadline (policy paper)
    moves: MigrationPolicy | None = None  # when a request may migrate; unset: as the policy has it
    guaranteed_priority: int | None = None  # requests of at least this priority keep all thresholds under load
    key_weights: tuple[str, ...] = ()  # KEY=WEIGHT: shares of API keys under load; 1 if not named (policy dilaserve)
    lookahead: Annotated[int, msgspec.Meta(ge=0, le=1)] = 1  # steps sent ahead of the last result
    step_timeout_s: Seconds = 60.0  # seconds after which an unanswered step goes to another instance
    max_stored_bytes: Annotated[int, msgspec.Meta(ge=MIN_DISK_BYTES)] = DISK_BYTES  # bytes of the cell on NATS's disk
    shared_prefixes: bool = False  # requests of different API keys may share cached prefixes
    stop_at_eos: bool = True  # skip the blocks after the one that holds the end of text

    @property
    def candidates(self) -> tuple[float, ...]:
        """The candidate thresholds, ascending. Raises: BadInput if there are none."""
        if not self.thresholds:
            raise BadInput("DILASERVE_THRESHOLDS must name at least one threshold", "thresholds")
        return tuple(sorted(set(self.thresholds)))

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
