"""Numeric arrays on the wire: raw little-endian bytes, never lists."""

import numpy as np
from numpy.typing import NDArray

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]
Bool = NDArray[np.bool_]
UInt8 = NDArray[np.uint8]

INT32_BYTES = 4  # of a token id, as it is packed
_INT32, _INT64, _FLOAT32 = np.dtype("<i4"), np.dtype("<i8"), np.dtype("<f4")  # names are slow to look up


def pack_int32(values: object) -> bytes:
    return np.asarray(values, dtype=_INT32).tobytes()


def pack_int64(values: object) -> bytes:
    return np.asarray(values, dtype=_INT64).tobytes()


def pack_float32(values: object) -> bytes:
    return np.asarray(values, dtype=_FLOAT32).tobytes()


def unpack_int32(data: bytes) -> Int32:
    """Read-only view of `data`. Raises: ValueError if its length is not a multiple of 4."""
    return np.frombuffer(data, dtype=_INT32)


def unpack_int64(data: bytes) -> Int64:
    return np.frombuffer(data, dtype=_INT64)


def unpack_float32(data: bytes) -> Float32:
    return np.frombuffer(data, dtype=_FLOAT32)
