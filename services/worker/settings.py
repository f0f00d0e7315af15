"""Settings of the worker."""

from typing import Annotated, ClassVar, Literal

import msgspec

from shared.settings import Positive, Seconds, ServiceSettings

PrefixShare = Annotated[float, msgspec.Meta(ge=0, le=0.9)]
Digest = Annotated[str, msgspec.Meta(pattern="^([0-9a-f]{64})?$")]
NAME = "^[A-Za-z0-9_-]{1,96}$"  # one subject token


class WorkerSettings(ServiceSettings, frozen=True, kw_only=True):
    """One worker process is one instance."""

    removed: ClassVar[tuple[str, ...]] = ("prefix_page",)

    model: str = "models/demo"  # model directory (Hugging Face layout) or hub id
    model_name: str = ""  # model name in the API; empty: the directory's name
    instance: Annotated[str, msgspec.Meta(pattern=NAME)] = "worker"  # worker name; the instance id adds six hex digits
    node: str = "local"  # name of the node that the worker runs on
    gpus: tuple[Annotated[int, msgspec.Meta(ge=0)], ...] = ()  # GPU numbers on the node, one per rank
    tp: Positive = 1  # TP degree: ranks of this instance
    threads: Annotated[int, msgspec.Meta(ge=0)] = 0  # CPU threads per rank; 0: an equal share of the available cores
    device: Literal["auto", "cpu", "cuda"] = "auto"  # device type; auto: cuda if present
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"  # number format; auto: by the device and its instructions
    attention: Literal["auto", "torch", "flash-attn", "fallback"] = "auto"  # kernel; auto: flash-attn's, else torch's
    cache_tokens: Annotated[int, msgspec.Meta(ge=0)] = 0  # KV cache capacity in tokens; 0: by free memory
    prefix_cache: PrefixShare = 0.25  # share of the KV cache for common prefixes of prompts (block-causal models)
    max_batch_tokens: Positive = 8192  # most tokens computed by one iteration
    max_batch_requests: Positive = 64  # most requests in one iteration
    canary_interval_s: Seconds = 10.0  # seconds between two runs of the canary under load
    weights_sha256: Digest = ""  # SHA-256 of the weights, hex; empty: as the cell first had them
    profile: str = ""  # PROFILE.csv of the instance; empty: the profile of an earlier start, else a quick measurement
