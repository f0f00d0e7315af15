"""Experts instead of one MLP: each token uses the few that its router chooses, and a shared one.

Shape letters: T tokens, W width, E experts, k experts of a token.
"""

from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from services.worker.model.families.config import Experts
from services.worker.model.fused import Activation, Fused, gated
from services.worker.model.row_padding import pad_rows


class Router(nn.Module):
    """Chooses the experts of each token; always in float32."""

    def __init__(self, width: int, experts: Experts) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(experts.count, width))
        self.expert_bias = None if experts.is_softmax else nn.Parameter(torch.empty(experts.count))

    def scores(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The scores in 0..1, and their sums with the bias. Shapes: x [T, W] -> [T, E] each."""
        logits = F.linear(pad_rows(x.float()), self.weight)[: len(x)]
        if self.expert_bias is not None:
            return scores_of(logits, self.expert_bias)
        scores = logits.softmax(dim=-1)
        return scores, scores


@Fused
def scores_of(logits: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Shapes: logits [T, E], bias [E] -> [T, E] each."""
    # On a CPU, torch's sigmoid rounds the last elements of a tensor in another way, so that a token's scores would
    # depend on its company.
    is_on_cpu = logits.device.type == "cpu"
    scores = logits.neg_().exp_().add_(1).reciprocal_() if is_on_cpu else logits.sigmoid()
    return scores, scores + bias


class ExpertWeights(nn.Module):
    """One matrix of each expert of this rank: [experts, out, in]."""

    def __init__(self, count: int, out: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(count, out, width))


class RankExperts(nn.Module):
    """The gated MLPs of the experts of this rank."""

    def __init__(self, width: int, count: int, columns: int, activation: Activation) -> None:
        super().__init__()
        self.activation = activation
        self.gate_up = ExpertWeights(count, 2 * columns, width)
        self.down = ExpertWeights(count, width, columns)

    def run(self, expert: int, x: Tensor) -> Tensor:
        """Shapes: x [n, W] -> [n, W]."""
        inner = gated(F.linear(pad_rows(x), self.gate_up.weight[expert]), self.activation)
        return F.linear(inner, self.down.weight[expert])[: len(x)]

    def run_all(self, x: Tensor, ends: Tensor) -> Tensor:
        """Rows sorted by expert; `ends`: int32 [experts], the end of each one's. Shapes: x [n, W] -> [n, W]."""
        inner = gated(F.grouped_mm(x, self.gate_up.weight.mT, offs=ends), self.activation)
        return F.grouped_mm(inner, self.down.weight.mT, offs=ends)


class RoutedExperts(nn.Module):
    """The experts of one rank, which are split evenly over the ranks."""

    def __init__(self, width: int, experts: Experts, rank: int, ranks: int, activation: Activation = F.silu) -> None:
        super().__init__()
        self.shape = experts
        count = experts.count // ranks
        self.first, self.count = rank * count, count
        self.experts = RankExperts(width, count, experts.width, activation)

    def mix(self, x: Tensor, chosen: Tensor, weights: Tensor, mixed: Tensor | None = None) -> Tensor:
        """Add this rank's experts to `mixed`, perhaps in place; None: to 0.

        Shapes: x and mixed [T, W], chosen and weights [T, k] -> [T, W].
        """
        is_grouped = has_grouped_products(x.device, x.dtype)
        return (self._mix_grouped if is_grouped else self._mix_one_by_one)(x, chosen, weights, mixed)

    def _mix_grouped(self, x: Tensor, chosen: Tensor, weights: Tensor, mixed: Tensor | None) -> Tensor:
        """One product for all experts, without a read by the host."""
        is_split = self.count < self.shape.count
        if is_split:  # those of this rank first
            chosen = (chosen - self.first) % self.shape.count
        sorted_experts, order = chosen.flatten().sort(stable=True)  # the pairs of token and expert, by expert
        ends = torch.searchsorted(sorted_experts, _range(self.count, x.device), right=True, out_int32=True)
        rows = rows_by_expert(x, order, self.shape.per_token)  # [T * k, W]
        found = self.experts.run_all(rows, ends)
        by_token = rows.index_copy_(0, order, found).view(*chosen.shape, -1)  # [T, k, W]
        if is_split:  # the rows of other ranks' experts are not computed
            is_other = (chosen >= self.count).unsqueeze(-1)
            by_token.masked_fill_(is_other, 0)
        first, beta = (x, 0) if mixed is None else (mixed, 1)
        weights, first = weights.unsqueeze(1), first.unsqueeze(1)
        return torch.baddbmm(first, weights, by_token, beta=beta, alpha=self.shape.scale).squeeze(1)

    def _mix_one_by_one(self, x: Tensor, chosen: Tensor, weights: Tensor, mixed: Tensor | None) -> Tensor:
        """A product for each expert, with the same bits for a token in any batch on a CPU."""
        mixed = torch.zeros_like(x) if mixed is None else mixed
        weights = weights.flatten() * self.shape.scale
        order = chosen.flatten().argsort(stable=True)  # the pairs of token and expert, by expert
        counts = chosen.flatten().bincount(minlength=self.shape.count).tolist()
        start = sum(counts[: self.first])
        for expert in range(self.count):
            pairs = order[start : start + counts[self.first + expert]]
            start += len(pairs)
            if not len(pairs):
                continue
            tokens = pairs // self.shape.per_token
            found = self.experts.run(expert, x[tokens])
            mixed.index_add_(0, tokens, found * weights[pairs].unsqueeze(1).to(found.dtype))
        return mixed


class ExpertMlp(RoutedExperts):
    """The experts of one rank, and its columns of the shared expert, if the model has one."""

    def __init__(self, width: int, experts: Experts, shared: nn.Module | None, rank: int, ranks: int) -> None:
        super().__init__(width, experts, rank, ranks)
        self.router = Router(width, experts)
        self.shared = shared

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Shapes: x and residual [T, W] -> [T, W], to be summed over the ranks."""
        chosen, weights = choose_experts(*self.router.scores(x), self.shape, routing_dtype(x))  # [T, k] each
        return self.mix(x, chosen, weights, residual if self.shared is None else self.shared(x, residual))


@Fused
def rows_by_expert(x: Tensor, order: Tensor, per_token: int) -> Tensor:
    """The row of x of each pair of token and expert: pair p is of token p // per_token.

    Shapes: x [T, W], order [T * k] -> [T * k, W].
    """
    return x[order // per_token]


def routing_dtype(x: Tensor) -> torch.dtype:
    """Of the routing weights: that of x for grouped products, float32 where the experts run one by one."""
    return x.dtype if has_grouped_products(x.device, x.dtype) else torch.float32


def has_grouped_products(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether torch computes the products of all experts in one operation."""
    return device.type != "cpu" and dtype == torch.bfloat16


def groups_on_device(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether that operation is one kernel, of Hopper and the first Blackwell GPUs. On others the host reads the number
    of rows of each expert."""
    is_one_kernel = device.type == "meta" or torch.cuda.get_device_capability(device)[0] in {9, 10}
    return has_grouped_products(device, dtype) and is_one_kernel


@cache
def _range(count: int, device: torch.device) -> Tensor:
    return torch.arange(count, device=device)


def choose_experts(
    scores: Tensor, biased: Tensor, shape: Experts, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    """The experts of each token and their weights.

    Source: LLaDA2. The choice is by the scores plus the bias: of the groups whose two best sum up to the most, the best
    experts. The weights are the scores without the bias.
    Shapes: scores and biased [T, E], which it changes -> int64 [T, k] and `dtype` [T, k].
    """
    if others := shape.groups - shape.kept_groups:
        grouped = biased.view(len(biased), shape.groups, -1)  # [T, groups, E / groups]
        left_out = grouped.topk(2, dim=-1).values.sum(dim=-1).topk(others, dim=-1, largest=False).indices
        grouped.scatter_(1, left_out.unsqueeze(-1).expand(-1, -1, grouped.shape[-1]), -torch.inf)
    chosen = biased.topk(shape.per_token, dim=-1).indices
    if not shape.is_normalized:
        return chosen, scores.gather(1, chosen).to(dtype)
    return chosen, shares_of(scores, chosen, dtype)


@Fused
def shares_of(scores: Tensor, chosen: Tensor, dtype: torch.dtype) -> Tensor:
    """The scores of the chosen experts as shares of their sum. Shapes: scores [T, E], chosen [T, k] -> [T, k]."""
    own = scores.gather(1, chosen)
    return (own / own.sum(dim=-1, keepdim=True)).to(dtype)
