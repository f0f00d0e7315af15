"""The decoder of all families over packed tokens.

Packed: the tokens of all sequences are concatenated to one row [T], without padding or a batch axis. The caller's
`attend` function decides which tokens attend to each other and where keys and values are stored; the decoder knows
neither caches nor attention back ends.

Shape letters: T tokens, D head size, H query heads, K key/value heads, W width, V vocabulary.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from services.worker.cache.kv_store import KvShape
from services.worker.model.experts import ExpertMlp
from services.worker.model.families import ModelConfig
from services.worker.model.families.config import AttentionShape, Yarn
from services.worker.model.fused import Activation, gated
from shared.errors import BadInput


class Attend(Protocol):
    """Attention of one layer; q and k are rotated already."""

    def __call__(self, layer: int, q: Tensor, kv: Tensor, rows: Tensor | None = None) -> Tensor:
        """Shapes: q [T, H, D], keys and values side by side [T, 2 K, D] -> [T, H, D], or of these rows: [R, H, D]."""


Reduce = Callable[[Tensor], Tensor]
"""Sums a tensor over the ranks of an instance: [T, W] -> [T, W]."""


@dataclass(frozen=True, slots=True)
class Shard:
    """One rank's share of a model: heads, MLP and vocabulary are split evenly, the rest is replicated."""

    rank: int = 0
    size: int = 1

    def kv_heads(self, shape: AttentionShape) -> tuple[int, int]:
        """The first of this rank's key/value heads, and their number. A head that several ranks use is on each."""
        return self.rank * shape.num_kv_heads // self.size, max(1, shape.num_kv_heads // self.size)

    def check(self, config: ModelConfig) -> None:
        """Raises: BadInput if the model cannot be split into this number of ranks."""
        splits = {"heads": config.num_heads, "MLP columns": config.mlp_width, "vocabulary rows": config.vocab_size}
        if config.experts:
            splits |= {"experts": config.experts.count, "shared experts' columns": config.experts.shared_width}
        for unit, number in splits.items():
            if number % self.size:
                raise BadInput(
                    f"tensor-parallel degree {self.size} does not divide the model's {number} {unit}", "model"
                )
        for kv_heads in {config.attention(layer).num_kv_heads for layer in range(config.num_layers)}:
            if kv_heads % self.size and self.size % kv_heads:
                raise BadInput(f"tensor-parallel degree {self.size} does not fit {kv_heads} key/value heads", "model")


WHOLE = Shard()


class HeadNorms:
    """Normalizes heads of several kinds, such as queries and keys, in one operation."""

    def __init__(self, eps: float, *kinds: tuple[nn.RMSNorm | None, int]) -> None:
        """`kinds`: the norm of each, or None for one without weights, and the number of its heads."""
        self._eps, self._kinds = eps, kinds
        self._weights: Tensor | None = None  # of all heads, made at first use

    def __call__(self, heads: Tensor) -> Tensor:
        """Shapes: heads [T, H, D] -> float32 [T, H, D]."""
        weights = self._weights
        if weights is None or weights.device != heads.device:
            ones = heads.new_ones(heads.shape[-1])
            own = [(ones if norm is None else norm.weight).expand(count, -1) for norm, count in self._kinds]
            weights = self._weights = torch.cat(own).float()
        return F.rms_norm(heads, heads.shape[-1:], eps=self._eps) * weights


class Mlp(nn.Module):
    """A gated MLP, or one rank's columns of it."""

    def __init__(self, width: int, columns: int, activation: Activation = F.silu) -> None:
        super().__init__()
        self.activation = activation
        self.gate_up = nn.Linear(width, 2 * columns, bias=False)
        self.down = nn.Linear(columns, width, bias=False)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Shapes: x [T, W] -> [T, W], to be summed over the ranks; with the residual [T, W], the product and their sum
        are one operation."""
        inner = gated(self.gate_up(x), self.activation)  # [T, columns]
        return self.down(inner) if residual is None else torch.addmm(residual, inner, self.down.weight.mT)


class Layer(nn.Module):
    """One transformer layer: norm, attention, norm, gated MLP or experts, each with its residual."""

    def __init__(self, index: int, config: ModelConfig, shard: Shard, reduce: Reduce) -> None:
        super().__init__()
        self.index = index
        self.reduce, self.is_whole = reduce, shard.size == 1
        kv_heads = shard.kv_heads(config.attention(index))[1]
        self.heads = (config.num_heads // shard.size, kv_heads, kv_heads)
        self.head_dim, self.rotary_dim = config.head_dim, config.rotary_dim
        self.attn_norm = nn.RMSNorm(config.width, config.norm_eps)
        self.qkv = nn.Linear(config.width, sum(self.heads) * config.head_dim, bias=config.qkv_bias)
        self.q_norm = nn.RMSNorm(config.head_dim, config.norm_eps) if config.qk_norm else None
        self.k_norm = nn.RMSNorm(config.head_dim, config.norm_eps) if config.qk_norm else None
        kinds = (self.q_norm, self.heads[0]), (self.k_norm, kv_heads)
        self.head_norms = HeadNorms(config.norm_eps, *kinds) if config.qk_norm else None
        self.attn_out = nn.Linear(self.heads[0] * config.head_dim, config.width, bias=False)
        self.mlp_norm = nn.RMSNorm(config.width, config.norm_eps)
        experts = config.experts if config.experts and index >= config.experts.num_dense_layers else None
        self.mlp: nn.Module
        if experts is None:
            self.mlp = Mlp(config.width, config.mlp_width // shard.size)
        else:
            shared = Mlp(config.width, experts.shared_width // shard.size) if experts.shared_width else None
            self.mlp = ExpertMlp(config.width, experts, shared, shard.rank, shard.size)

    def forward(self, x: Tensor, turns: Tensor, attend: Attend, rows: Tensor | None = None) -> Tensor:
        """Shapes: x [T, W], turns [T, 1, rotary_dim / 2] -> [T, W], or with rows [R] -> [R, W]."""
        qkv = self.qkv(self.attn_norm(x)).view(len(x), -1, self.head_dim)  # [T, H + 2 K, D]
        num_q, num_kv, _ = self.heads
        turned = qkv[:, : num_q + num_kv]
        if self.head_norms is None:
            rotate_(turned[..., : self.rotary_dim], turns)
        else:
            exact = self.head_norms(turned)
            rotate_(exact[..., : self.rotary_dim], turns)
            turned.copy_(exact)
        mixed = attend(self.index, qkv[:, :num_q], qkv[:, num_q:], rows)  # [T, H, D] or [R, H, D]
        if rows is not None:
            x = x[rows]
        mixed = mixed.flatten(1)
        if self.is_whole and x.device.type != "cpu":
            x = torch.addmm(x, mixed, self.attn_out.weight.mT)  # product and sum in one operation
            hidden: Tensor = self.mlp(self.mlp_norm(x), x)
            return hidden
        x = x + self.reduce(self.attn_out(mixed))
        return x + self.reduce(self.mlp(self.mlp_norm(x)))


class PackedDecoder(nn.Module):
    """Embedding, layers, final norm and head of one model.

    The caller loads or initializes the weights.
    Source: the published modelling files of the families.
    """

    layer_type: type[nn.Module] = Layer

    def __init__(self, config: ModelConfig, shard: Shard = WHOLE, reduce: Reduce = lambda x: x) -> None:
        super().__init__()
        shard.check(config)
        self.config = config
        self.shard = shard
        # Empty, since initializing it on the meta device would make torch import its compiler, which takes a second.
        rows = torch.empty(config.vocab_size, config.width)
        self.embed: nn.Embedding = nn.Embedding.from_pretrained(rows, freeze=False)  # type: ignore[no-untyped-call]
        self.layers = nn.ModuleList(self.layer_type(index, config, shard, reduce) for index in range(config.num_layers))
        self.norm = nn.RMSNorm(config.width, config.norm_eps)
        self.head_rows = config.vocab_size // shard.size
        self.head: nn.Module | None = None if config.tied_head else nn.Linear(config.width, self.head_rows, bias=False)
        self._turns: Tensor | None = None  # of all positions, computed at first use

    def forward(self, tokens: Tensor, positions: Tensor, attend: Attend, rows: Tensor | None = None) -> Tensor:
        """Run all layers over packed tokens; with `rows`, the last layer's MLP runs for these rows only.

        Shapes: tokens [T] int64, positions [T] int64 (from the start of each sequence), rows [R] int64 -> hidden
        [T, W] or [R, W], after the final norm.
        """
        if self._turns is None or self._turns.device != tokens.device:
            every = torch.arange(self.config.max_length, device=tokens.device)
            self._turns = rope_turns(every, self.config.attention(0))
        turns = self._turns.index_select(0, positions)
        x = self.embed(tokens)  # [T, W]
        last = len(self.layers) - 1
        for index, layer in enumerate(self.layers):
            x = layer(x, turns, attend, rows if index == last else None)
        hidden: Tensor = self.norm(x)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """The head. Shapes: hidden [R, W] -> raw, unshifted logits [R, V / shard.size]."""
        return F.linear(hidden, self.head_weight) if self.head is None else self.head(hidden)

    @property
    def head_weight(self) -> Tensor:
        """Shapes: [V / shard.size, W]."""
        if isinstance(self.head, nn.Linear):
            return self.head.weight
        return self.embed.weight.narrow(0, self.first_token, self.head_rows)

    @property
    def kv_shape(self) -> KvShape:
        """The shape of the keys and values of this rank."""
        shapes = [self.config.attention(layer) for layer in range(self.config.num_layers)]
        sizes = tuple((2 * self.shard.kv_heads(shape)[1], shape.head_dim) for shape in shapes)
        return KvShape(sizes, self.embed.weight.dtype, self.embed.weight.device)

    @property
    def first_token(self) -> int:
        """The token of this rank's first logit."""
        return self.shard.rank * self.head_rows


def rope_turns(positions: Tensor, shape: AttentionShape) -> Tensor:
    """The rotation of each position's pairs, as complex64 numbers. Shapes: positions [T] -> [T, 1, rotary_dim / 2]."""
    exponents = torch.arange(0, shape.rotary_dim, 2, dtype=torch.float32, device=positions.device) / shape.rope_span
    speeds = 1.0 / shape.rope_base**exponents
    if shape.yarn is not None:
        speeds = stretched(speeds, shape, shape.yarn)
    angles = torch.outer(positions.float(), speeds)  # [T, rotary_dim / 2]
    return torch.polar(torch.ones_like(angles), angles).unsqueeze(1)


def stretched(speeds: Tensor, shape: AttentionShape, yarn: Yarn) -> Tensor:
    """The speeds of the pairs for longer texts. Shapes: [rotary_dim / 2] -> the same."""

    def pair_of(rotations: float) -> float:
        """The pair that rotates this often over the original length."""
        periods = yarn.original_length / (rotations * 2 * math.pi)
        return shape.rope_span * math.log(periods) / (2 * math.log(shape.rope_base))

    first = max(math.floor(pair_of(yarn.beta_fast)), 0)
    last = min(math.ceil(pair_of(yarn.beta_slow)), shape.rope_span - 1)
    places = torch.arange(len(speeds), dtype=torch.float32, device=speeds.device)
    slowed = ((places - first) / max(last - first, 0.001)).clamp(0, 1)
    return speeds / yarn.factor * slowed + speeds * (1 - slowed)


def rotate_(x: Tensor, turns: Tensor) -> None:
    """Rotary embedding, in place, computed in fp32. Two neighbours are a pair: `weights` reorders the published rows,
    whose pairs are half the rotated dimensions apart. Shapes: x [T, H, rotary_dim], turns [T, 1, rotary_dim / 2]."""
    exact = x.float()  # the same tensor in fp32
    torch.view_as_complex(exact.view(*exact.shape[:-1], -1, 2)).mul_(turns)
    if exact is not x:
        x.copy_(exact)
