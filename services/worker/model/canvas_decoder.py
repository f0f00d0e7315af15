"""The decoder of models that denoise canvases: one set of layers reads finished text, and with other scales and
self-conditioning a canvas.

Source: DiffusionGemma in transformers. Packed: the finished text of all requests first, then their canvases.
Shape letters: T tokens, C tokens of canvases among them, D head size, H query heads, K key/value heads, W width.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from services.worker.cache.kv_store import KvShape
from services.worker.model.decoder import Attend, HeadNorms, Mlp, PackedDecoder, Reduce, Shard, rope_turns, rotate_
from services.worker.model.experts import RoutedExperts, routing_dtype
from services.worker.model.families import ModelConfig
from services.worker.model.families.config import AttentionShape, Experts
from services.worker.model.fused import Fused


def gelu(x: Tensor) -> Tensor:
    """Any shape -> the same."""
    return F.gelu(x, approximate="tanh")


class SoftmaxRouter(nn.Module):
    """Chooses the experts of each token; always in float32."""

    def __init__(self, width: int, experts: Experts) -> None:
        super().__init__()
        self.per_token = experts.per_token
        self.proj = nn.Linear(width, experts.count, bias=False)
        self.scale = nn.Parameter(torch.ones(width))
        self.per_expert_scale = nn.Parameter(torch.ones(experts.count))

    def forward(self, x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The experts of each token and their weights. Shapes: x float32 [T, W], normalized and with `scale` -> int64
        [T, k] and `dtype` [T, k]."""
        best, chosen = self.proj(x).topk(self.per_token, dim=-1)
        return chosen, weights_of(best, chosen, self.per_expert_scale, dtype)


@Fused
def weights_of(best: Tensor, chosen: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Shapes: the chosen experts' scores [T, k], chosen [T, k], scale of each expert [E] -> [T, k]."""
    return (best.softmax(dim=-1) * scale[chosen]).to(dtype)


class SoftmaxExperts(RoutedExperts):
    """Experts beside a dense MLP, chosen by the softmax of scores."""

    def __init__(self, config: ModelConfig, experts: Experts, shard: Shard) -> None:
        super().__init__(config.width, experts, shard.rank, shard.size, gelu)
        self.router = SoftmaxRouter(config.width, experts)

    def forward(self, x: Tensor, router_input: Tensor) -> Tensor:
        """Shapes: [T, W] each -> [T, W], to be summed over the ranks."""
        chosen, weights = self.router(router_input, routing_dtype(x))
        return self.mix(x, chosen, weights)


class CanvasLayer(nn.Module):
    """Attention, then a dense MLP and experts side by side; each has a norm before it and one behind it."""

    def __init__(self, index: int, config: ModelConfig, shard: Shard, reduce: Reduce) -> None:
        super().__init__()
        assert config.experts is not None, "the family has experts"
        self.index, self.reduce, self.eps = index, reduce, config.norm_eps
        self.is_whole = shard.size == 1
        self.shape = config.attention(index)
        kv_heads = shard.kv_heads(self.shape)[1]
        self.heads = (config.num_heads // shard.size, kv_heads, kv_heads)
        head_dim = self.shape.head_dim

        def norm(width: int = config.width) -> nn.RMSNorm:
            return nn.RMSNorm(width, config.norm_eps)

        self.attn_norm, self.attn_end_norm = norm(), norm()
        self.qkv = nn.Linear(config.width, sum(self.heads) * head_dim, bias=False)
        self.q_norm, self.k_norm = norm(head_dim), norm(head_dim)
        kinds = zip((self.q_norm, self.k_norm, None), self.heads, strict=True)
        self.head_norms = HeadNorms(config.norm_eps, *kinds)
        self.attn_out = nn.Linear(self.heads[0] * head_dim, config.width, bias=False)
        self.mlp_norm, self.mlp_end_norm = norm(), norm()
        self.mlp = Mlp(config.width, config.mlp_width // shard.size, gelu)
        self.moe_norm, self.moe_end_norm = norm(), norm()
        self.moe = SoftmaxExperts(config, config.experts, shard)
        self.end_norm = norm()
        self.text_scale, self.canvas_scale = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor, turns: Tensor, scale: Tensor, attend: Attend, rows: Tensor | None = None) -> Tensor:
        """Shapes: x [T, W], turns [T, 1, rotary_dim / 2], scale [T, 1] -> [T, W], or with rows [R] -> [R, W]."""
        qkv = self.qkv(self.attn_norm(x)).unflatten(-1, (-1, self.shape.head_dim))  # [T, H + 2 K, D]
        num_q, num_kv, _ = self.heads
        exact = self.head_norms(qkv)
        rotate_(exact[:, : num_q + num_kv, : self.shape.rotary_dim], turns)
        qkv = exact.to(x.dtype)
        mixed = attend(self.index, qkv[:, :num_q], qkv[:, num_q:], rows)  # [T, H, D] or [R, H, D]
        if rows is not None:
            x, scale = x[rows], scale[rows]
        mixed = self.reduce(self.attn_out(mixed.flatten(1)))
        norms = self.attn_end_norm.weight, self.mlp_norm.weight, self.moe_norm.weight, self.moe.router.scale
        x, of_mlp, of_experts, of_router = after_attention(x, mixed, norms, self.eps)
        dense, routed = self.mlp(of_mlp), self.moe(of_experts, of_router)
        if not self.is_whole:
            dense, routed = self.reduce(torch.stack((dense, routed)))
        ends = self.mlp_end_norm.weight, self.moe_end_norm.weight, self.end_norm.weight
        return end_of_layer(x, dense, routed, ends, scale, self.eps)


@Fused
def after_attention(x: Tensor, mixed: Tensor, norms: tuple[Tensor, ...], eps: float) -> tuple[Tensor, ...]:
    """Add the normalized result of attention, and normalize the sum for the MLP, the experts and their router.

    Shapes: x and mixed [T, W]; `norms`, [W] each: of `mixed`, the MLP, the experts, the router -> [T, W] each,
    the router's in float32.
    """
    width, (after, of_mlp, of_experts, of_router) = x.shape[-1:], norms
    x = x + F.rms_norm(mixed, width, after, eps)
    router_input = F.rms_norm(x.float(), width, of_router * width[0] ** -0.5, eps)
    return x, F.rms_norm(x, width, of_mlp, eps), F.rms_norm(x, width, of_experts, eps), router_input


@Fused
def end_of_layer(
    x: Tensor, dense: Tensor, routed: Tensor, norms: tuple[Tensor, ...], scale: Tensor, eps: float
) -> Tensor:
    """Add the normalized results of MLP and experts.

    Shapes: [T, W], `norms`, [W] each: of the MLP's result, the experts', their sum; scale [T, 1] -> [T, W].
    """
    width, (of_dense, of_routed, end) = x.shape[-1:], norms
    both = F.rms_norm(dense, width, of_dense, eps) + F.rms_norm(routed, width, of_routed, eps)
    return (x + F.rms_norm(both, width, end, eps)) * scale


class Conditioning(nn.Module):
    """Adds the last step's prediction to a canvas. Each rank has it whole."""

    def __init__(self, width: int, columns: int, eps: float) -> None:
        super().__init__()
        self.norm, self.eps = nn.RMSNorm(width, eps), eps
        self.gate = nn.Linear(width, columns, bias=False)
        self.up = nn.Linear(width, columns, bias=False)
        self.down = nn.Linear(columns, width, bias=False)

    def forward(self, x: Tensor, predicted: Tensor) -> Tensor:
        """Shapes: [C, W] each -> [C, W]; without a last step, `predicted` is 0."""
        predicted = self.norm(predicted)
        signal = self.down(gelu(self.gate(predicted)) * self.up(predicted))
        return F.rms_norm(x + signal, x.shape[-1:], eps=self.eps)


class CanvasDecoder(PackedDecoder):
    """Embedding, layers, final norm and head; the head has the embedding's weights, and its logits a cap."""

    layer_type = CanvasLayer

    def __init__(self, config: ModelConfig, shard: Shard, reduce: Reduce) -> None:
        super().__init__(config, shard, reduce)
        self.conditioning = Conditioning(config.width, config.mlp_width, config.norm_eps)

    def hidden(self, tokens: Tensor, positions: Tensor, predicted: Tensor, attend: Attend, rows: Tensor) -> Tensor:
        """Run all layers; the last C tokens are those of canvases.

        Shapes: tokens and positions [T] int64, predicted [C, W] (of the last step, as an embedding), rows [R] int64 ->
        hidden [R, W], after the final norm.
        """
        x = self._scaled(self.embed(tokens))
        first = len(tokens) - len(predicted)
        x[first:] = self.conditioning(x[first:], predicted)
        turns = dict[AttentionShape, Tensor]()
        layers = [layer for layer in self.layers if isinstance(layer, CanvasLayer)]
        scales = torch.cat([part for layer in layers for part in (layer.text_scale, layer.canvas_scale)])
        is_canvas = (torch.arange(len(tokens), device=tokens.device) >= first).long()
        scales = scales.view(-1, 2, 1)[:, is_canvas]  # [layers, T, 1]
        last = len(layers) - 1
        for index, layer in enumerate(layers):
            if layer.shape not in turns:
                turns[layer.shape] = rope_turns(positions, layer.shape)
            x = layer(x, turns[layer.shape], scales[index], attend, rows if index == last else None)
        hidden: Tensor = self.norm(x)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """As `PackedDecoder`, in float32."""
        cap = self.config.logit_cap
        return super().logits(hidden).float().div_(cap).tanh_().mul_(cap)

    def embedding_of(self, probabilities: Tensor) -> Tensor:
        """The mean embedding by probabilities of this rank's tokens. Shapes: [R, V / shard.size] -> [R, W], to be
        summed over the ranks."""
        own = self.embed.weight.narrow(0, self.first_token, self.head_rows)
        return self._scaled(probabilities.to(own.dtype) @ own)

    @property
    def kv_shape(self) -> KvShape:
        """As `PackedDecoder`, and behind it the predictions of the last steps, an even and an odd one, at each token of
        a canvas. So a step that failed can run again."""
        shape = super().kv_shape
        return shape._replace(layers=(*shape.layers, (2, self.config.width)))

    def _scaled(self, embedding: Tensor) -> Tensor:
        return embedding * torch.tensor(self.config.width**0.5, dtype=embedding.dtype)
