"""The scheduler's settings."""

from typing import Annotated, Literal

import msgspec

from services.scheduler.policies import MigrationPolicy
from shared.settings import Seconds, ServiceSettings

Threshold = Annotated[float, msgspec.Meta(ge=0, le=1)]


class SchedulerSettings(ServiceSettings, frozen=True, kw_only=True):
    """Variables: DILASERVE_ and the field's name in capitals."""

    model: str  # directory of the model, or its hub id: its tokenizer and configuration are read
    model_name: str = ""  # as clients name it; empty: the directory's name
    policy: Literal["dilaserve", "llumnix", "infaas", "fixed"] = "fixed"
    threshold: Threshold = 0.9  # of the policies with a fixed one
    thresholds: tuple[Threshold, ...] = (0.5, 0.6, 0.7, 0.8, 0.9)  # candidates of the dilaserve policy, ascending
    default_slo_s: Seconds = 5.0  # for requests that name none, seconds from arrival
    cache: Literal["none", "prefix", "dual"] = "none"  # as the workers have it: how keys and values are kept
    predictor: str = ""  # directory with the predictor's card; empty: `predictor` in the model's directory
    estimates: Literal["predictor", "one-shot"] = "predictor"  # of the steps a request has left
    load_control: bool = True  # of the dilaserve policy: limit thresholds by the cluster's load
    margin_steps: Annotated[float, msgspec.Meta(ge=0)] = 1.0  # kept in hand before a deadline; 0: the paper's form
    moves: MigrationPolicy | None = None  # when a request may change its instance; None: as the policy has it
    guaranteed_priority: int | None = None  # from this priority on, requests keep all thresholds under any load
    lookahead: Annotated[int, msgspec.Meta(ge=0, le=1)] = 1  # steps sent before the last result is read
    step_timeout_s: Seconds = 60.0  # a step unanswered for so long is given to another instance
    stop_at_eos: bool = True  # blocks after the one that holds the end of the text are not computed
