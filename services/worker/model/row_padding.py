"""Pads the rows of matrix products. With fewer rows, the CPU's routine sums in another order, and a row's result would
depend on its company; from MIN_ROWS on it has the same bits in any batch."""

from torch import Tensor
from torch.nn import functional as F

MIN_ROWS = 16


def padded_rows(rows: int) -> int:
    """The rows to compute, at least MIN_ROWS: a few numbers for each power of two, as oneDNN compiles a routine for
    each number and keeps about a thousand."""
    step = max(MIN_ROWS, 1 << max(rows.bit_length() - 5, 0))
    return -(-rows // step) * step


def pad_rows(x: Tensor) -> Tensor:
    """Add rows of zeros up to MIN_ROWS. Shapes: x [T, W] -> [max(T, MIN_ROWS), W]."""
    return x if len(x) >= MIN_ROWS else F.pad(x, (0, 0, 0, MIN_ROWS - len(x)))
