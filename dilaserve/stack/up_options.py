"""The options of `dilaserve up`, each once: its type, default and help.

An option with the name of a setting sets it in every service that has this setting. None: the service reads its
variable of the environment, and without one has its default.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from typer import Option

from services.gateway.settings import GatewaySettings
from services.scheduler.registry import DEFAULT_POLICY, PolicyName
from shared.messages.cell import BLOCK_CAUSAL_CACHES, CACHES, DEFAULT_SLO_S, DEFAULT_THRESHOLDS_TEXT, CacheName

GATEWAY: Mapping[str, Any] = {field.name: field.default for field in msgspec.structs.fields(GatewaySettings)}
DEMO_MODEL = Path(__file__).resolve().parents[2] / "models" / "demo"
Model = Annotated[str, Option(help="Checkpoint directory or hub id.", show_default="the demo model")]
Cache = Annotated[
    CacheName | None,
    Option(
        help="KV cache of the workers.",
        show_default=f"{BLOCK_CAUSAL_CACHES[0]} for block-causal models, else {CACHES[0]}",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class UpOptions:
    port: Annotated[int, Option(min=1, max=65535, help="Port of the REST API.")] = GATEWAY["port"]
    host: Annotated[str, Option(help="Address of the REST API; 0.0.0.0: all interfaces.")] = GATEWAY["host"]
    model: Model = str(DEMO_MODEL)
    slots: Annotated[
        int | None,
        Option(min=1, help="Slots: GPUs, or equal shares of the CPU cores.", show_default="the GPUs, or the cores"),
    ] = None
    instances: Annotated[
        str | None,
        Option(help="Instances as COUNTxTP[,COUNTxTP...].", show_default="one for each GPU, or 2x1 if they fit"),
    ] = None
    device: Annotated[
        Literal["auto", "cpu", "cuda"],
        Option(envvar="DILASERVE_DEVICE", show_envvar=False, help="Device of the workers; auto: GPUs if any."),
    ] = "auto"
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16"] | None,
        Option(
            help="Number format of the workers.",
            show_default="bfloat16 on GPUs and CPUs with AVX-512 BF16, else float32",
        ),
    ] = None
    policy: Annotated[PolicyName | None, Option(help="Scheduling policy.", show_default=DEFAULT_POLICY)] = None
    default_slo_s: Annotated[
        float | None,
        Option(
            "--slo",
            min=0.001,
            max=86400,
            help="SLO in seconds of requests without one.",
            show_default=f"by --profile and the step predictor, else {DEFAULT_SLO_S:g}",
        ),
    ] = None
    thresholds: Annotated[
        str | None,
        Option(
            help="Candidate thresholds; a policy with a fixed one uses the highest.",
            show_default=DEFAULT_THRESHOLDS_TEXT,
        ),
    ] = None
    cache: Cache = None
    edit_threshold: Annotated[
        float | None,
        Option(
            min=0,
            max=1,
            help="LLaDA2.1 only: a step may replace an unmasked token of the current block by a token whose confidence "
            "is above this value. 1 turns edits off.",
            show_default="0.5 if the model's name contains LLaDA2.1, else 1",
        ),
    ] = None
    auth: Annotated[
        bool | None,
        Option(
            "--auth/--no-auth",
            help="Require an API key from clients (see `dilaserve keys`).",
            show_default="no on the loopback address, yes elsewhere",
        ),
    ] = None
    shed: Annotated[
        bool, Option("--shed", help="Refuse (429) requests that cannot meet their SLO at the lowest threshold.")
    ] = False
    gateways: Annotated[int, Option(min=1, max=64, help="Gateway processes, which share the port.")] = 1
    standby: Annotated[
        bool, Option("--standby", help="Run a second scheduler, which serves within seconds if the first fails.")
    ] = False
    tls_certificate: Annotated[
        Path | None,
        Option(
            envvar="DILASERVE_TLS_CERTIFICATE",
            show_envvar=False,
            resolve_path=True,
            help="PEM file of the REST API's certificate, for HTTPS; with --tls-key.",
            show_default="plain HTTP",
        ),
    ] = None
    tls_key: Annotated[
        Path | None,
        Option(
            envvar="DILASERVE_TLS_KEY", show_envvar=False, resolve_path=True, help="PEM file of the certificate's key."
        ),
    ] = None
    data_dir: Annotated[Path, Option(resolve_path=True, help="Data directory of NATS and Postgres.")] = Path(".data")
    sync_interval: Annotated[
        str,
        Option(
            help="Interval of NATS's file syncs. Accepted requests survive a killed process; "
            "they survive a power loss only with `always`, which is slower."
        ),
    ] = "2m"
    reconfigure: Annotated[
        bool | None,
        Option(
            "--reconfigure/--no-reconfigure",
            help="Plan the instances every 5 minutes, and change them if the gain is worthwhile.",
            show_default="on several GPUs",
        ),
    ] = None
    profile: Annotated[
        Path | None,
        Option(
            envvar="DILASERVE_PROFILE",
            show_envvar=False,
            resolve_path=True,
            help="PROFILE.csv of the model.",
            show_default="each instance measures its own",
        ),
    ] = None
    predictor: Annotated[
        Path | None,
        Option(resolve_path=True, help="Directory of the step predictor.", show_default="`predictor` in the model's"),
    ] = None
    first_metrics_port: Annotated[
        int,
        Option(
            "--metrics-port",
            min=0,
            max=65000,
            help="First port of Prometheus metrics: the scheduler's; the other services use the next ports.",
            show_default="only the gateway's /metrics",
        ),
    ] = 0
    producers: Annotated[
        str, Option(help="Names of producers on the bus, as a,b; each has a URL in stack.json.", show_default="none")
    ] = ""
    nats_nodes: Annotated[
        int, Option(help="Embedded NATS servers: 1, or a cluster of 3 or 5 that serves on if one fails.")
    ] = 1
    nats_url: Annotated[
        str | None, Option(help="URL of a running NATS server to use; of a cluster all, with commas.")
    ] = None
    database_url: Annotated[str | None, Option(help="URL of a running Postgres to use.")] = None


def with_up_options(command: Callable[[UpOptions], None]) -> Callable[..., None]:
    """The command with one parameter for each option, from which Typer makes the command line."""

    @functools.wraps(command)
    def run(**given: Any) -> None:
        command(UpOptions(**given))

    run.__signature__ = inspect.signature(UpOptions)  # type: ignore[attr-defined]
    run.__annotations__ = {name: field.type for name, field in UpOptions.__dataclass_fields__.items()}
    del run.__wrapped__  # its parameters would be those of the command line
    return run
