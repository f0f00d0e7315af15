"""The shape of a model, as plain data: everything that the decoder and the engine know about its family."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Experts:
    """The shape of the layers that have experts instead of one MLP.

    A group is a run of consecutive experts; each token's experts are of `kept_groups` groups.
    """

    num_dense_layers: int  # the first layers have none
    count: int
    per_token: int
    width: int  # of an expert's MLP
    shared_width: int  # of the MLP that every token uses
    groups: int
    kept_groups: int
    scale: float  # of the experts' weights, whose sum is 1 before

    def __post_init__(self) -> None:
        if min(self.count, self.per_token, self.width, self.groups, self.kept_groups) < 1:
            raise ValueError("every number of experts must be at least 1")
        if self.count % self.groups or self.count // self.groups < 2:
            raise ValueError(f"{self.count} experts are not {self.groups} equal groups of at least 2")
        if self.kept_groups > self.groups or self.per_token > self.kept_groups * self.count // self.groups:
            raise ValueError(f"{self.per_token} experts per token do not fit into {self.kept_groups} groups")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The shape of one model. Units: lengths in tokens, `vocab_size` in rows of the embedding and of the head."""

    family: str
    num_layers: int
    width: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    mlp_width: int
    vocab_size: int
    rope_base: float
    norm_eps: float
    mask_token_id: int
    eos_token_id: int
    max_length: int  # tokens of prompt and output together
    rotary_dim: int  # the first dimensions of each head, which are rotated
    qkv_bias: bool = False
    qk_norm: bool = False  # each head's query and key are normalized before the rotation
    tied_head: bool = False  # the head has the embedding's weights
    experts: Experts | None = None
    shifted_logits: bool = False  # the logits at position p - 1 are for the token at p
    confidence_at_temperature: bool = False  # a sample's confidence is that in the softmax at its temperature
    can_edit: bool = False  # whether its decoding may change tokens of the block
    block_length: int = 0  # 0: attention in both directions, any length; else block-causal, with this usual length

    @property
    def is_block_causal(self) -> bool:
        """Whether a token attends to its own and earlier blocks only. Blocks then lie on a grid of absolute positions,
        and a token is unmasked above the threshold, not at it."""
        return self.block_length > 0

    def __post_init__(self) -> None:
        sizes = (self.num_layers, self.width, self.num_heads, self.num_kv_heads, self.mlp_width, self.vocab_size)
        if min(*sizes, self.max_length) < 1:
            raise ValueError("every size must be at least 1")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"{self.num_heads} heads cannot share {self.num_kv_heads} key/value heads evenly")
        if self.rotary_dim % 2 or not 0 < self.rotary_dim <= self.head_dim:
            raise ValueError(f"rope needs an even size within a head of {self.head_dim}, got {self.rotary_dim}")
        if not 0 <= self.mask_token_id < self.vocab_size:
            raise ValueError(f"mask_token_id {self.mask_token_id} is outside the {self.vocab_size} embedding rows")
