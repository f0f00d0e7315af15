"""The memory of an instance's device."""

import os

import torch

from shared.health import resident_bytes


def memory_use(device: torch.device) -> tuple[int, int]:
    """Bytes in use and in all: of a GPU, or on a CPU of this process and of the machine."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return total - free, total
    return resident_bytes(), os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
