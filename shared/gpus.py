"""The GPUs of this machine, counted without torch, whose import takes seconds."""

import os
import shutil
import subprocess

NVIDIA_SMI_TIMEOUT_S = 10.0


def num_gpus() -> int:
    """The number of NVIDIA GPUs that a program started here can use; CUDA_VISIBLE_DEVICES limits it. 0 without a
    driver."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return 0
    try:
        listed = subprocess.run(  # noqa: S603  (the driver's program)
            [program, "--list-gpus"], capture_output=True, text=True, timeout=NVIDIA_SMI_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return 0
    count = sum(line.startswith("GPU ") for line in listed.stdout.splitlines())
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return count
    return min(count, len([name for name in chosen.split(",") if name.strip() not in ("", "-1")]))
