"""The worker's settings."""

from typing import Annotated, Literal

import msgspec

from shared.settings import Positive, ServiceSettings

NAME = "^[A-Za-z0-9_-]{1,96}$"  # one subject token


class WorkerSettings(ServiceSettings, frozen=True, kw_only=True):
    """`DILASERVE_MODEL` and so on. One process is one instance."""

    model: str = "models/demo"  # a directory in Hugging Face layout, or a hub id
    model_name: str = ""  # as clients call it; empty: the directory's name
    instance: Annotated[str, msgspec.Meta(pattern=NAME)] = "worker"  # an id is this and six random digits
    node: str = "local"
    gpus: tuple[Annotated[int, msgspec.Meta(ge=0)], ...] = ()  # of its node, one a rank
    tp: Positive = 1  # tensor-parallel degree: ranks of this instance
    threads: Annotated[int, msgspec.Meta(ge=0)] = 0  # of each rank; 0: an equal share of the cores it may use
    device: Annotated[str, msgspec.Meta(pattern="^(auto|cpu|cuda)$")] = "auto"
    dtype: Annotated[str, msgspec.Meta(pattern="^(auto|float32|bfloat16)$")] = "auto"
    cache: Literal["none", "prefix", "dual"] = "none"  # how keys and values are kept
    cache_tokens: Annotated[int, msgspec.Meta(ge=0)] = 0  # that the cache holds; 0: as the free memory allows
    max_batch_tokens: Positive = 8192  # computed by one iteration
    max_batch_requests: Positive = 64  # in one iteration
    profile: str = ""  # PROFILE.csv to register with; empty: that of an earlier start, or a quick one measured now
