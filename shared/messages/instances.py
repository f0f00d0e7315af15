"""Registration of instances, and their control."""

import enum

import msgspec


class InstanceState(enum.StrEnum):
    STARTING = "starting"  # loads its model
    READY = "ready"
    DRAINING = "draining"  # takes no request it does not already hold


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """What the control plane must know of the served model."""

    name: str
    max_length: int  # tokens, prompt and output together
    mask_token_id: int
    eos_token_id: int
    vocab_size: int


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """Worker -> scheduler, gateway, reconfigurator: this instance is here, renewed every HEARTBEAT_S.

    KV bucket: instances, key = instance_id (unique for each start of a worker). Gone after INSTANCE_TTL_S
    without renewal, or at once when deleted.
    """

    instance_id: str
    model: ModelCard
    tp_degree: int
    state: InstanceState = InstanceState.READY
    node: str = "local"
    gpus: list[int] = []
    device: str = "cpu"
    max_batch_tokens: int = 8192
    max_batch_requests: int = 64
    cache_tokens: int = 0  # tokens that its KV cache holds; 0: it keeps none, or does not say
    profile: str = ""  # latency profile of this instance's TP degree, as PROFILE.csv; empty: not measured
    requests: int = 0  # that it holds
    drain_until_s: float = 0.0  # Unix time, seconds; draining, it keeps requests so long if moving them costs a step
    heartbeat: int = 0  # counts renewals


class Control(msgspec.Struct, frozen=True, kw_only=True):
    """Reconfigurator -> worker. Subject: dilaserve.<cell>.control.<instance>. Core NATS."""

    action: str  # "drain"
    within_s: float = 0.0  # seconds that requests may wait for their next recompute step before they move
