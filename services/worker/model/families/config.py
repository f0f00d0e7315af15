"""The shape of a model, as plain data: everything that the decoder and the engine know about its family."""

from dataclasses import dataclass

from shared.model_families import MAX_SIZE

MAX_LAYERS, MAX_EXPERTS = 512, 1024  # more than any published model has; a decoder has a module for each layer


@dataclass(frozen=True, slots=True)
class Experts:
    """The shape of the layers that have experts instead of one MLP.

    A group is a run of consecutive experts; each token's experts are of `kept_groups` groups.
    """

    num_dense_layers: int  # the first layers have none
    count: int
    per_token: int
    width: int  # of an expert's MLP
    shared_width: int  # of the MLP that every token uses; 0: none
    groups: int
    kept_groups: int
    scale: float  # of the experts' weights
    is_softmax: bool = False  # the scores are the router's softmax; else its sigmoids, with a bias for the choice
    is_normalized: bool = True  # the weights' sum is 1 before they are scaled; else they are the scores

    def __post_init__(self) -> None:
        if self.shared_width > MAX_SIZE:
            raise ValueError(f"the shared experts' width is {self.shared_width}; accepted: up to {MAX_SIZE}")
        if self.count % self.groups or self.count // self.groups < 2:
            raise ValueError(f"{self.count} experts are not {self.groups} equal groups of at least 2")
        if self.kept_groups > self.groups or self.per_token > self.kept_groups * self.count // self.groups:
            raise ValueError(f"{self.per_token} experts per token do not fit into {self.kept_groups} groups")


@dataclass(frozen=True, slots=True)
class Yarn:
    """A rotation for texts `factor` times as long as those of the training, slower in the dimensions that rotate less.

    Source: YaRN, as transformers computes it.
    """

    factor: float
    original_length: int  # tokens
    beta_fast: float  # rotations over the original length, from which on a dimension keeps its speed
    beta_slow: float  # and up to which it is `factor` times slower


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """The attention of one layer."""

    num_kv_heads: int
    head_dim: int
    rotary_dim: int  # the dimensions of each head that are rotated
    rope_base: float
    rope_span: int  # dimensions: the exponents are fractions of it, and published pairs are half of it apart
    window: int = 0  # the keys of a token that attends to earlier ones: itself and those before it; 0: all
    keys_are_values: bool = False  # before their norms, which differ
    yarn: Yarn | None = None


@dataclass(frozen=True, slots=True)
class CanvasRules:
    """The decoding of a block whose tokens are all drawn again in each step.

    Source: DiffusionGemma. The temperature falls with the steps left. A step keeps the draws of lowest entropy up to a
    bound, and replaces all others by random tokens. The block ends when its most probable tokens have been the same for
    `stable_steps` and their mean entropy is low.
    """

    max_steps: int
    entropy_bound: float  # nats, at USUAL_THRESHOLD
    t_min: float
    t_max: float
    stable_steps: int
    max_mean_entropy: float  # nats

    def temperature(self, step: int) -> float:
        """The temperature of a step of the block, from 0."""
        return self.t_min + (self.t_max - self.t_min) * (self.max_steps - step) / self.max_steps

    def bound(self, threshold: float) -> float:
        """The entropy bound of a step with this threshold: the checkpoint's at 0.9, in proportion to its distance to 1
        elsewhere."""
        return self.entropy_bound * (1 - threshold) / (1 - USUAL_THRESHOLD)


USUAL_THRESHOLD = 0.9


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
    sub_block_length: int = 0  # the first one of a block that has masks is filled before the others; 0: none
    causal_text: bool = False  # text attends to earlier tokens only; its last one predicts the next block's first one
    yarn: Yarn | None = None
    canvas: CanvasRules | None = None  # of a block-causal model whose blocks begin at the prompt's end
    own_attention: tuple[AttentionShape, ...] = ()  # of each layer, where they differ
    logit_cap: float = 0.0  # logits come near this value, but never reach it; 0: no cap

    def attention(self, layer: int) -> AttentionShape:
        """The shape of a layer's attention."""
        if self.own_attention:
            return self.own_attention[layer]
        return AttentionShape(
            self.num_kv_heads, self.head_dim, self.rotary_dim, self.rope_base, self.rotary_dim, yarn=self.yarn
        )

    @property
    def is_block_causal(self) -> bool:
        """Whether a token attends to its own and earlier blocks only. A token is then unmasked above the threshold, not
        at it."""
        return self.block_length > 0

    @property
    def has_text_spans(self) -> bool:
        """Whether finished text attends to earlier tokens only, and blocks begin at the prompt's end."""
        return self.causal_text or self.canvas is not None

    @property
    def is_aligned(self) -> bool:
        """Whether blocks lie on a grid of absolute positions."""
        return self.is_block_causal and not self.has_text_spans

    def __post_init__(self) -> None:
        for shape in {*self.own_attention} or {self.attention(0)}:
            if self.num_heads % shape.num_kv_heads:
                raise ValueError(f"{self.num_heads} heads cannot share {shape.num_kv_heads} key/value heads evenly")
            if shape.rotary_dim % 2 or not 0 < shape.rotary_dim <= shape.head_dim:
                raise ValueError(f"rope needs an even size within a head of {shape.head_dim}, got {shape.rotary_dim}")
            if self.num_heads * shape.head_dim > MAX_SIZE:
                raise ValueError(f"{self.num_heads} heads of {shape.head_dim}; accepted: {MAX_SIZE} together")
        if self.canvas is None and (self.own_attention or self.logit_cap):
            raise ValueError("attention that differs by layer and a cap of the logits need the canvas decoder")
        if not 0 <= self.mask_token_id < self.vocab_size + (self.canvas is not None):
            raise ValueError(f"mask_token_id {self.mask_token_id} is outside the {self.vocab_size} embedding rows")
