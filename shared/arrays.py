"""Numeric arrays on the wire: raw little-endian bytes, never lists."""

import numpy as np
from numpy.typing import NDArray

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]
Bool = NDArray[np.bool_]


def pack_int32(values: object) -> bytes:
    return np.asarray(values, dtype="<i4").tobytes()


def pack_int64(values: object) -> bytes:
    return np.asarray(values, dtype="<i8").tobytes()


def pack_float32(values: object) -> bytes:
    return np.asarray(values, dtype="<f4").tobytes()


def unpack_int32(data: bytes) -> Int32:
    """Read-only view of `data`. Raises: ValueError if its length is not a multiple of 4."""
    return np.frombuffer(data, dtype="<i4")


def unpack_int64(data: bytes) -> Int64:
    return np.frombuffer(data, dtype="<i8")


def unpack_float32(data: bytes) -> Float32:
    return np.frombuffer(data, dtype="<f4")
