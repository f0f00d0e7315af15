"""Pads the rows of matrix products. With fewer rows, the CPU's routine sums in another order, and a row's result would
depend on its company; from MIN_ROWS on it has the same bits in any batch."""

from torch import Tensor
from torch.nn import functional as F

MIN_ROWS = 16


def num_padded_rows(rows: int) -> int:
    """The rows to compute, at least MIN_ROWS: a few numbers for each power of two, as oneDNN compiles a routine for
    each number and keeps about a thousand."""
    step = max(MIN_ROWS, 1 << max(rows.bit_length() - 5, 0))
    return -(-rows // step) * step


def pad_rows(x: Tensor, least: int = MIN_ROWS) -> Tensor:
    """Add rows of zeros, up to `least` rows. Shapes: x [T, W] -> [max(T, least), W]."""
    missing = least - x.shape[0]  # `len` of a tensor takes five times as long
    return F.pad(x, (0, 0, 0, missing)) if missing > 0 else x
