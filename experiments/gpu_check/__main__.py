"""Check the engine on this machine's GPU within 8 minutes, and write a report.

    make gpu-check
    python -m experiments.gpu_check --device cpu --toy

It needs torch from 2.11 on, numpy, safetensors and msgspec. Each stage runs in its own process and is saved when it
ends: after an interruption, the next run continues with the stages that are left. `--fresh` repeats all.
"""

import argparse
import hashlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from experiments.gpu_check.findings import Findings

ROOT = Path(__file__).parents[2]
STAND_INS = Path(__file__).parent / "stand_ins"
PACKAGES = ("torch", "numpy", "safetensors", "msgspec")
LIMIT_S, STAGE_LIMIT_S = 470.0, 150.0
MIN_S = 5.0  # no stage begins with less time left


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="gpu_check", description="Checks the engine on a GPU, and writes a report.")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--toy", action="store_true", help="toy size, for a machine without a GPU")
    parser.add_argument("--fresh", action="store_true", help="repeat the stages that an earlier run has saved")
    parser.add_argument("--limit-s", type=float, default=LIMIT_S, help="seconds after which no stage runs")
    parser.add_argument(
        "--out", type=Path, help="the report; by default experiments/results/gpu.md, of a CPU in --saved"
    )
    parser.add_argument("--saved", type=Path, default=ROOT / "build" / "gpu_check", help="folder of the stages")
    parser.add_argument("--only", nargs="+", metavar="STAGE", help="run these stages only")
    parser.add_argument("--stage", help=argparse.SUPPRESS)  # of the processes that this program starts
    chosen = parser.parse_args()
    if chosen.out is None:
        chosen.out = (ROOT / "experiments" / "results" if chosen.device == "cuda" else chosen.saved) / "gpu.md"
    return chosen


def main() -> int:
    """Returns: 0 if every stage passed or was skipped, 1 otherwise, 2 without a device or a package."""
    chosen = options()
    if sys.version_info < (3, 11):  # noqa: UP036 - the machine's own Python
        sys.stderr.write(f"gpu_check: needs Python 3.11 or newer, {sys.executable} is {sys.version.split()[0]}\n")
        return 2
    if missing := [name for name in PACKAGES if not importlib.util.find_spec(name)]:
        sys.stderr.write(f"gpu_check: {sys.executable} lacks {', '.join(missing)}\n")
        return 2
    if not importlib.util.find_spec("structlog"):
        sys.path.append(str(STAND_INS))
    import torch  # noqa: PLC0415 - after the check that it is installed

    from experiments.gpu_check.findings import Setup  # noqa: PLC0415
    from experiments.gpu_check.stages import STAGES, run_stage  # noqa: PLC0415

    if chosen.device == "cuda" and not torch.cuda.is_available():
        sys.stderr.write("gpu_check: torch sees no CUDA device; --device cpu --toy tries the program without one\n")
        return 2
    if chosen.stage:
        run_stage(chosen.stage, Setup(torch.device(chosen.device), chosen.toy), chosen.saved)
        return 0
    if unknown := set(chosen.only or ()) - STAGES.keys():
        sys.stderr.write(f"gpu_check: no stage {', '.join(sorted(unknown))}; the stages are {', '.join(STAGES)}\n")
        return 2
    return run_all(chosen.only or list(STAGES), chosen, _key(torch.__version__))


def run_all(stages: list[str], chosen: argparse.Namespace, key: str) -> int:
    """Run each stage that is not saved. Returns: as `main`."""
    from experiments.gpu_check.findings import stored  # noqa: PLC0415
    from experiments.gpu_check.report import report  # noqa: PLC0415

    saved = chosen.saved / f"{chosen.device}{'-toy' if chosen.toy else ''}-{key}"
    if chosen.fresh:
        shutil.rmtree(saved, ignore_errors=True)
    saved.mkdir(parents=True, exist_ok=True)
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    end_s = time.monotonic() + chosen.limit_s
    title = "The engine on a GPU" if chosen.device == "cuda" else "The check of GPUs, on a CPU"
    found: list[Findings] = []
    for name in stages:
        earlier = stored(saved, name)
        is_done = earlier is not None and earlier.status != "ERROR"
        each = earlier if is_done and earlier is not None else run_apart(name, chosen, saved, end_s)
        print(
            f"{name}: {each.status}{' earlier' if is_done else f' in {each.seconds:.0f} s'} {each.reason}", flush=True
        )
        found.append(each)
        chosen.out.write_text(report(found, title), encoding="utf-8")
    print(f"report: {chosen.out}")
    return int(any(each.status in ("FAILED", "ERROR") for each in found))


def run_apart(name: str, chosen: argparse.Namespace, saved: Path, end_s: float) -> "Findings":
    """Run a stage in a process of its own. A stage that crashes, hangs or is not begun has the status ERROR."""
    from experiments.gpu_check.findings import Findings, stored  # noqa: PLC0415

    left_s = min(STAGE_LIMIT_S, end_s - time.monotonic())
    if left_s < MIN_S:
        return Findings(name, "ERROR", "no time left; run the command again")
    (saved / f"{name}.json").unlink(missing_ok=True)
    log = saved / f"{name}.log"
    command = [sys.executable, "-m", __package__, "--stage", name, "--device", chosen.device, "--saved", str(saved)]
    environ = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    with log.open("wb") as output:
        stage = subprocess.Popen(
            [*command, *(["--toy"] if chosen.toy else [])],
            cwd=ROOT,
            env=environ,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        status = stage.wait(left_s)
    except subprocess.TimeoutExpired:
        return Findings(name, "ERROR", f"not finished within {left_s:.0f} s; its output: {log}", left_s)
    finally:
        if stage.poll() is None:
            os.killpg(stage.pid, signal.SIGKILL)  # with its ranks
            stage.wait()
    return stored(saved, name) or Findings(name, "ERROR", f"ended with status {status}; its output: {log}")


def _key(torch_version: str) -> str:
    """A hash of the code and of torch's version: the findings of others are not used."""
    paths = sorted([*(ROOT / "services" / "worker").rglob("*.py"), *Path(__file__).parent.rglob("*.py")])
    return hashlib.sha256(torch_version.encode() + b"".join(path.read_bytes() for path in paths)).hexdigest()[:16]


if __name__ == "__main__":
    sys.exit(main())
