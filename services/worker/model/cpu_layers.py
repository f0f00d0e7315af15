"""Layers on a CPU: matrix products of oneDNN, with weights in its own layout, and shorter norms.

On x86, torch's product of float32 matrices is MKL's, which uses half of the vector width of other makers' CPUs. On an
AMD EPYC, oneDNN takes 45 % of MKL's time. Rows are padded so that a row's result has the same bits in any batch.
"""

import torch
from torch import Tensor, nn

from services.worker.model.decoder import PackedDecoder
from services.worker.model.row_padding import num_padded_rows, pad_rows

EXPECTED_ROWS = 32  # for the choice of the layout


class OneDnnLinear(nn.Module):
    """A linear layer whose weight is packed, which frees the layer's own."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        self.out_features = len(weight)
        self._packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), EXPECTED_ROWS)
        self._bias = None if bias is None else bias.detach()

    def forward(self, x: Tensor) -> Tensor:
        """Shapes: x [T, W] -> [T, out_features]."""
        padded = pad_rows(x, num_padded_rows(x.shape[0]))
        product: Tensor = torch.ops.mkldnn._linear_pointwise(padded, self._packed, self._bias, "none", [], "")
        return product if padded is x else product[: x.shape[0]]


class ShortRmsNorm(nn.Module):
    """`nn.RMSNorm` with half of the operations on all values. For float32 only: in bfloat16 the length would be
    rounded."""

    def __init__(self, norm: nn.RMSNorm) -> None:
        super().__init__()
        self.weight = norm.weight
        self._eps = torch.tensor(norm.eps)

    def forward(self, x: Tensor) -> Tensor:
        """Shapes: x [T, W] -> [T, W]."""
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        scale = torch.addcmul(self._eps, length, length, value=1 / x.shape[-1]).rsqrt_()
        return (x * scale).mul_(self.weight)


def can_pack(dtype: torch.dtype) -> bool:
    """Whether oneDNN packs weights of this number format on this CPU: bfloat16 needs AVX-512 or newer instructions."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    return dtype is not torch.bfloat16 or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def pack_for_cpu(decoder: PackedDecoder) -> None:
    """Replace the linear layers of a decoder on a CPU, one after another; its head too, also if it is the embedding's
    weight; and the norms of float32. Where oneDNN cannot pack the weights nothing changes."""
    if decoder.embed.weight.device.type != "cpu" or not can_pack(decoder.embed.weight.dtype):
        return
    parents = [module for module in decoder.modules() if not isinstance(module, nn.Linear)]
    for module in parents:
        for name, child in module.named_children():
            if isinstance(child, nn.Linear):
                setattr(module, name, OneDnnLinear(child.weight, child.bias))
            if isinstance(child, nn.RMSNorm) and child.weight.dtype is torch.float32:
                setattr(module, name, ShortRmsNorm(child))
    if decoder.head is None:
        decoder.head = OneDnnLinear(decoder.head_weight)
