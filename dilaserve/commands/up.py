"""`dilaserve up`: the embedded cluster on one machine."""

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from services.scheduler.registry import DEFAULT_POLICY, POLICY_WITHOUT_PREDICTOR, PolicyName

if TYPE_CHECKING:
    from dilaserve.stack.data_dir import Addresses
    from dilaserve.stack.options import StackOptions

EXAMPLE = "Example: dilaserve up --port 8000 --instances 2x1 --slo 5"
QUESTION = "We have 10 lemons, get 22 more and share them equally among 2 bags. How many lemons does each bag get?"
DEMO_MODEL = Path(__file__).resolve().parents[2] / "models" / "demo"
Model = Annotated[str, typer.Option(help="Checkpoint directory or hub id.", show_default="the demo model")]


def up(
    *,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the REST API.")] = 8000,
    host: Annotated[str, typer.Option(help="Address of the REST API; 0.0.0.0: all interfaces.")] = "127.0.0.1",
    model: Model = str(DEMO_MODEL),
    slots: Annotated[
        int | None,
        typer.Option(
            min=1, help="Slots: GPUs, or equal shares of the CPU cores.", show_default="the GPUs, or the cores"
        ),
    ] = None,
    instances: Annotated[
        str | None,
        typer.Option(help="Instances as COUNTxTP[,COUNTxTP...].", show_default="one for each GPU, or 2x1 if they fit"),
    ] = None,
    device: Annotated[
        Literal["auto", "cpu", "cuda"],
        typer.Option(envvar="DILASERVE_DEVICE", show_envvar=False, help="Device of the workers; auto: GPUs if any."),
    ] = "auto",
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16"],
        typer.Option(
            envvar="DILASERVE_DTYPE",
            show_envvar=False,
            help="Number format of the workers; auto: bfloat16 on GPUs, else float32.",
        ),
    ] = "auto",
    policy: Annotated[
        PolicyName | None,
        typer.Option(
            help="Scheduling policy.",
            show_default=f"{DEFAULT_POLICY} if the model has a step predictor, else {POLICY_WITHOUT_PREDICTOR}",
        ),
    ] = None,
    slo: Annotated[float, typer.Option(min=0.001, max=86400, help="SLO in seconds of requests without one.")] = 5.0,
    thresholds: Annotated[
        str, typer.Option(help="Candidate thresholds; a policy with a fixed one uses the highest.")
    ] = "0.5,0.6,0.7,0.8,0.9",
    cache: Annotated[
        Literal["none", "prefix", "dual", "block"] | None,
        typer.Option(help="KV cache of the workers.", show_default="block for block-causal models, else dual"),
    ] = None,
    auth: Annotated[
        bool | None,
        typer.Option(
            "--auth/--no-auth",
            help="Require an API key from clients (see `dilaserve keys`).",
            show_default="no on the loopback address, yes elsewhere",
        ),
    ] = None,
    shed: Annotated[
        bool, typer.Option("--shed", help="Refuse (429) requests that cannot meet their SLO at the lowest threshold.")
    ] = False,
    standby: Annotated[
        bool, typer.Option("--standby", help="Run a second scheduler, which serves within seconds if the first fails.")
    ] = False,
    tls_certificate: Annotated[
        Path | None,
        typer.Option(
            envvar="DILASERVE_TLS_CERTIFICATE",
            show_envvar=False,
            help="PEM file of the REST API's certificate, for HTTPS; with --tls-key.",
            show_default="plain HTTP",
        ),
    ] = None,
    tls_key: Annotated[
        Path | None,
        typer.Option(envvar="DILASERVE_TLS_KEY", show_envvar=False, help="PEM file of the certificate's key."),
    ] = None,
    data_dir: Annotated[Path, typer.Option(help="Data directory of NATS and Postgres.")] = Path(".data"),
    sync_interval: Annotated[
        str,
        typer.Option(
            help="Interval of NATS's file syncs. Accepted requests survive a killed process; "
            "they survive a power loss only with `always`, which is slower."
        ),
    ] = "2m",
    reconfigure: Annotated[
        bool | None,
        typer.Option(
            "--reconfigure/--no-reconfigure",
            help="Plan the instances every 5 minutes, and change them if the gain is worthwhile.",
            show_default="with --profile on several GPUs",
        ),
    ] = None,
    profile: Annotated[
        Path | None, typer.Option(help="PROFILE.csv of the model.", show_default="each instance measures its own")
    ] = None,
    metrics_port: Annotated[
        int,
        typer.Option(
            min=0,
            max=65000,
            help="First port of Prometheus metrics: the scheduler's; the other services use the next ports.",
            show_default="only the gateway's /metrics",
        ),
    ] = 0,
    producers: Annotated[
        str,
        typer.Option(help="Names of producers on the bus, as a,b; each has a URL in stack.json.", show_default="none"),
    ] = "",
    nats_url: Annotated[str | None, typer.Option(help="URL of a running NATS server to use.")] = None,
    database_url: Annotated[str | None, typer.Option(help="URL of a running Postgres to use.")] = None,
) -> None:
    """Start the whole cluster on this machine: NATS, Postgres, gateway, scheduler, workers, reconfigurator.

    Prints the address when it is ready. Ctrl-C (or SIGTERM) finishes running requests, then stops everything.
    """
    import asyncio  # noqa: PLC0415
    from contextlib import redirect_stderr, redirect_stdout  # noqa: PLC0415

    from dilaserve.stack import options as read  # noqa: PLC0415
    from dilaserve.stack.cluster import run_cluster  # noqa: PLC0415
    from dilaserve.stack.data_dir import lock_directory  # noqa: PLC0415
    from dilaserve.stack.ports import check_free  # noqa: PLC0415
    from dilaserve.stack.safe_output import BrokenPipeSafeStream  # noqa: PLC0415
    from services.gateway.tls import server_tls  # noqa: PLC0415
    from shared.gpus import num_gpus  # noqa: PLC0415
    from shared.logs import configure_logs  # noqa: PLC0415
    from shared.model_files import default_model_name  # noqa: PLC0415
    from shared.settings import ServiceSettings, read_settings  # noqa: PLC0415

    directory = read.check_model(model)
    gpus = 0 if device == "cpu" else num_gpus()
    num_slots = read.count_slots(slots, device, gpus)
    degrees = read.read_instances(instances, num_slots, default=gpus or 2)
    reconfigures = (gpus > 1 and num_slots > 1 and profile is not None) if reconfigure is None else reconfigure
    options = read.StackOptions(
        host=host,
        port=port,
        model=directory,
        model_name=default_model_name(model),
        instances=degrees,
        policy=policy or read.default_policy(directory),
        thresholds=read.read_thresholds(thresholds),
        slo_s=slo,
        cache=read.choose_cache(cache, directory),
        auth=not read.is_loopback(host) if auth is None else auth,
        shed=shed,
        data_dir=data_dir.resolve(),
        sync_interval=read.check_sync_interval(sync_interval),
        nats_url=nats_url,
        database_url=database_url,
        slots=num_slots,
        device=device,
        dtype=dtype,
        reconfigure=reconfigures,
        profile=read.check_profile(profile, degrees, reconfigure=reconfigures),
        metrics_port=metrics_port,
        standby=standby,
        tls_certificate=tls_certificate and tls_certificate.resolve(),
        tls_key=tls_key and tls_key.resolve(),
        producers=read.choose_producers(producers, nats_url),
    )
    server_tls(
        str(options.tls_certificate or ""), str(options.tls_key or "")
    )  # reports unusable files before the start
    settings = read_settings(ServiceSettings, os.environ)
    configure_logs("up", level=settings.log_level, form=settings.log_format)
    with (
        lock_directory(options.data_dir),
        redirect_stdout(BrokenPipeSafeStream(sys.stdout)),
        redirect_stderr(BrokenPipeSafeStream(sys.stderr)),
    ):
        check_free(options.host, options.port)
        for metrics in options.metrics_ports:
            check_free(settings.metrics_host, metrics, "--metrics-port")
        asyncio.run(run_cluster(options, lambda addresses: _print_ready(options, addresses)))


def _print_ready(options: "StackOptions", addresses: "Addresses") -> None:
    """Print the cluster's address and the next steps."""
    from dilaserve.outputs import open_console  # noqa: PLC0415

    console = open_console()
    count, name, program = len(options.instances), options.model_name, _program()
    instances = "1 instance" if count == 1 else f"{count} instances"
    key = " -H 'Authorization: Bearer KEY'" if options.auth else ""
    console.print(f"\n[bold green]DiLaServe is ready[/] on [bold]{addresses.url}[/] ({name}, {instances})\n")
    console.print(
        f"  curl {addresses.url}/v1/chat/completions -H 'Content-Type: application/json'{key} \\\n"
        '    -d \'{"model": "' + name + '", "messages": [{"role": "user", "content": "' + QUESTION + "\"}]}'\n",
        markup=False,
    )
    if options.auth:
        console.print(f"  API keys:       {program} keys create NAME --data-dir {options.data_dir}", markup=False)
    if options.metrics_ports:
        ports = f"{options.metrics_ports[0]} to {options.metrics_ports[-1]}"
        console.print(f"  Metrics:        {addresses.url}/metrics, and on ports {ports}", markup=False)
    console.print(
        f"  Console:        {addresses.url}/\n"
        f"  OpenAI clients: base_url={addresses.url}/v1, {'the' if options.auth else 'any'} api_key\n"
        f"  Cluster:        {program} status --data-dir {options.data_dir}\n"
        "  Stop:           Ctrl-C\n",
        markup=False,
    )


def _program() -> str:
    """How the user calls this command: by name, or by path if the name is not on the PATH."""
    return "dilaserve" if shutil.which("dilaserve") else os.path.relpath(Path(sys.executable).with_name("dilaserve"))
