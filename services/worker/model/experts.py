"""Experts instead of one MLP: each token uses the few that its router chooses, and a shared one.

Shape letters: T tokens, W width, E experts, k experts of a token.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from services.worker.model.families.config import Experts
from services.worker.model.row_padding import pad_rows


class Router(nn.Module):
    """Chooses the experts of each token; always in float32."""

    def __init__(self, width: int, experts: Experts) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(experts.count, width))
        self.expert_bias = nn.Parameter(torch.empty(experts.count))

    def scores(self, x: Tensor) -> Tensor:
        """Shapes: x [T, W] -> [T, E], in 0..1."""
        # Not torch's sigmoid: on a CPU it rounds the last elements of a tensor in another way, so that a token's scores
        # would depend on its company.
        return 1 / (1 + F.linear(pad_rows(x.float()), self.weight).neg_().exp_())[: len(x)]


class ExpertWeights(nn.Module):
    """One matrix of each expert of this rank: [experts, out, in]."""

    def __init__(self, count: int, out: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(count, out, width))


class RankExperts(nn.Module):
    """The gated MLPs of the experts of this rank."""

    def __init__(self, width: int, count: int, columns: int) -> None:
        super().__init__()
        self.gate_up = ExpertWeights(count, 2 * columns, width)
        self.down = ExpertWeights(count, width, columns)

    def run(self, expert: int, x: Tensor) -> Tensor:
        """Shapes: x [n, W] -> [n, W]."""
        gate, up = F.linear(pad_rows(x), self.gate_up.weight[expert]).chunk(2, dim=-1)
        return F.linear(F.silu(gate) * up, self.down.weight[expert])[: len(x)]


class ExpertMlp(nn.Module):
    """The experts of one rank, which are split evenly over the ranks, and its columns of the shared expert."""

    def __init__(self, width: int, experts: Experts, shared: nn.Module, rank: int, ranks: int) -> None:
        super().__init__()
        self.shape = experts
        count = experts.count // ranks
        self.first, self.count = rank * count, count
        self.router = Router(width, experts)
        self.experts = RankExperts(width, count, experts.width)
        self.shared = shared

    def forward(self, x: Tensor) -> Tensor:
        """Shapes: x [T, W] -> [T, W], to be summed over the ranks."""
        chosen, weights = choose_experts(self.router.scores(x), self.router.expert_bias, self.shape)  # [T, k] each
        mixed: Tensor = self.shared(x)
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
            mixed.index_add_(0, tokens, found * weights.flatten()[pairs].unsqueeze(1).to(found.dtype))
        return mixed


def choose_experts(scores: Tensor, bias: Tensor, shape: Experts) -> tuple[Tensor, Tensor]:
    """The experts of each token and their weights.

    Source: LLaDA2. The choice is by the scores plus the bias: of the groups whose two best sum up to the most, the best
    experts. The weights are the scores without the bias, normalized.
    Shapes: scores [T, E], bias [E] -> int64 [T, k] and float32 [T, k].
    """
    biased = scores + bias  # [T, E]
    grouped = biased.view(len(biased), shape.groups, -1)  # [T, groups, E / groups]
    best_groups = grouped.topk(2, dim=-1).values.sum(dim=-1).topk(shape.kept_groups, dim=-1).indices
    kept = torch.zeros(grouped.shape[:2], dtype=torch.bool, device=scores.device).scatter_(1, best_groups, value=True)
    possible = grouped.masked_fill(~kept.unsqueeze(-1), -torch.inf).flatten(1)
    chosen = possible.topk(shape.per_token, dim=-1).indices
    weights = scores.gather(1, chosen)
    return chosen, weights / (weights.sum(dim=-1, keepdim=True) + 1e-20) * shape.scale
