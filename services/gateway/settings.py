"""The gateway's settings."""

from typing import Annotated

import msgspec

from shared.settings import Positive, Seconds, ServiceSettings


class GatewaySettings(ServiceSettings, frozen=True, kw_only=True):
    """Variables: DILASERVE_ and the field's name in capitals."""

    model: str  # directory of the model, or its hub id: its tokenizer and configuration are read
    model_name: str = ""  # as clients name it; empty: the directory's name
    host: str = "127.0.0.1"
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 8000  # 0: any free one
    auth: bool = False  # whether clients need an API key
    database_url: str = ""  # where the API keys are: postgresql://...; needed with `auth`
    max_active_requests: Positive = 4096  # under way at once; more are refused with 429
    shed: bool = False  # whether to refuse, with 429, what cannot meet its SLO even at the lowest threshold
    default_slo_s: Seconds = 5.0  # as the scheduler has it; only `shed` asks
    request_timeout_s: Seconds = 600.0  # a request without an outcome for so long is given up and cancelled
    drain_timeout_s: Seconds = 30.0  # how long open requests may take to end after SIGTERM
