"""Parallel NumPy arrays, declared once: as the annotations of a class."""

from typing import Annotated, Any, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

ARRAY = get_origin(NDArray[Any])  # a type alias of NumPy 2.5, the array's class before


class Columns:
    """Each annotation of a subclass with an array type is a column of zeros, [capacity].

    `Annotated[Int32, 5]` is a column of shape [capacity, 5], `Annotated[Int32, "c"]` one of [capacity, lengths["c"]].
    """

    def __init__(self, capacity: int, **lengths: int) -> None:
        declared = _declared(type(self))
        self._names = [name for name, _, _ in declared]
        sizes = ([lengths[size] if isinstance(size, str) else size for size in shape] for _, _, shape in declared)
        self._set([np.zeros((capacity, *size), dtype) for size, (_, dtype, _) in zip(sizes, declared, strict=True)])

    def clear(self, row: int) -> None:
        """Set all columns of a row to zero."""
        for column in self._arrays:
            column[row] = 0

    def double(self) -> None:
        """Double the capacity; the new rows are zero."""
        self._set([np.concatenate([column, np.zeros_like(column)]) for column in self._arrays])

    def _set(self, arrays: list[NDArray[Any]]) -> None:
        self._arrays = arrays
        for name, column in zip(self._names, arrays, strict=True):
            setattr(self, name, column)


def _declared(kind: type) -> list[tuple[str, Any, tuple[int | str, ...]]]:
    """Name, data type and shape of a row of each column."""
    columns = []
    for name, hint in get_type_hints(kind, include_extras=True).items():
        array, *shape = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        if get_origin(array) is ARRAY:
            number = get_args(array)[-1]  # the type of its numbers, or before NumPy 2.5 their dtype[type]
            columns.append((name, (get_args(number) or [number])[0], tuple(shape)))
    return columns
