"""CPU cores, and their instructions."""

import os
from pathlib import Path


def num_cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


BFLOAT16_GAIN = "the demo model decodes 1.3 to 1.5 times as fast as in float32, at equal exact match"


def has_bfloat16() -> bool:
    """Whether the CPU multiplies bfloat16 numbers; False where that cannot be read."""
    return not {"avx512_bf16", "amx_bf16", "bf16"}.isdisjoint(_instructions())


def has_invariant_bfloat16() -> bool:
    """Whether the CPU multiplies bfloat16 numbers, and the bits of a row's product do not depend on the other rows.

    True for AVX-512 without AMX, with which they do; on Arm it is not known, so False.
    """
    found = _instructions()
    return "avx512_bf16" in found and "amx_bf16" not in found


def _instructions() -> set[str]:
    """The names of the CPU's instructions, among other words; none where they cannot be read."""
    try:
        return set(Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").split())
    except OSError:  # not Linux
        return set()
