"""Registration and control of instances."""

import enum
from typing import Annotated

import msgspec

from shared.messages.numbers import Finite
from shared.messages.versions import FIRST_VERSION

InstanceId = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-]{1,128}$(?!\n)")]  # one token of a subject
Tokens = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]


class InstanceState(enum.StrEnum):
    STARTING = "starting"  # loading its model
    READY = "ready"
    DRAINING = "draining"  # accepts no new requests
    QUARANTINED = "quarantined"  # computes wrong: it runs nothing, and restarts soon


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """The facts about the served model that other services need."""

    name: str
    max_length: Tokens  # prompt and output together
    mask_token_id: int
    eos_token_id: int
    vocab_size: int
    # The usual block length of a block-causal model. Its blocks lie on a grid of absolute positions: the first one may
    # begin within the prompt (unless `begins_at_prompt`). 0: blocks begin at the prompt's end.
    block_length: Tokens = 0
    begins_at_prompt: bool = False  # the blocks of a block-causal model begin at the prompt's end
    # The usual edit threshold of a model whose decoding may change tokens of the block; None: it changes none
    edit_threshold: float | None = None
    # The most steps of a block of a model that draws all tokens of it again in each step: they are written together at
    # its end. 0: steps unmask tokens
    canvas_steps: Annotated[int, msgspec.Meta(ge=0, lt=1 << 16)] = 0

    @property
    def attends_ahead(self) -> bool:
        """Whether a token of the output can depend on later text; block-causal models cannot."""
        return not self.block_length

    def block_offset(self, prompt_tokens: int, block_length: int) -> int:
        """The tokens of the prompt that belong to the output's first block."""
        return prompt_tokens % block_length if self.block_length and not self.begins_at_prompt else 0


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """Worker -> scheduler, gateway, reconfigurator: the registration of an instance, renewed every HEARTBEAT_S.

    KV bucket: instances, key = instance_id (unique for each start of a worker). Expires INSTANCE_TTL_S after the last
    renewal; deleted at a clean exit.
    """

    instance_id: InstanceId
    model: ModelCard
    tp_degree: Annotated[int, msgspec.Meta(ge=1, le=1024)]
    state: InstanceState = InstanceState.READY
    node: str = "local"
    gpus: list[int] = []
    device: str = "cpu"
    max_batch_tokens: Annotated[int, msgspec.Meta(ge=1, lt=1 << 31)] = 8192  # lower after an out-of-memory error
    max_batch_requests: Annotated[int, msgspec.Meta(ge=1, le=1 << 16)] = 64
    cache_tokens: Tokens = 0  # capacity of its KV cache; 0: no cache, or unknown
    used_cache_tokens: Tokens = 0  # of this capacity, in use
    prefix_tokens: Tokens = 0  # capacity of its prefix cache; 0: none
    used_prefix_tokens: Tokens = 0  # of this capacity, in use
    prefix_page: Tokens = 0  # tokens of a page of it
    wanted_tokens: int = 0  # of all requests so far: tokens of the whole pages before their first step's block
    cached_tokens: int = 0  # those among them that the prefix cache had
    memory_bytes: int = 0  # in use: of its first GPU, or on a CPU by its process; 0: unknown
    max_memory_bytes: int = 0  # of that GPU, or of the machine; 0: unknown
    profile: str = ""  # latency profile of its TP degree, in the form of PROFILE.csv; empty: none
    requests: int = 0  # number of requests that it holds
    drain_s: float = 0.0  # seconds from the order to drain for which it keeps requests whose move costs a step
    draining_s: float = 0.0  # seconds since that order
    heartbeat: int = 0  # number of renewals
    connections: int = 1  # to the bus so far; if it rises, results may be lost
    version: int = FIRST_VERSION  # of its messages (shared/messages/versions.py)
    quarantine: str = ""  # why it is quarantined
    unverified_s: Finite = 0.0  # of a quarantined one: seconds since its last good canary


class Control(msgspec.Struct, frozen=True, kw_only=True):
    """Reconfigurator -> worker. Subject: dilaserve.<cell>.control.<instance>. Core NATS."""

    action: str  # "drain"
    within_s: float = 0.0  # seconds that requests may wait for their next recompute step before they move
