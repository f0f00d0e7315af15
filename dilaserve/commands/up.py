"""`dilaserve up`: the embedded cluster on one machine."""

import asyncio
import os
import shlex
import shutil
import sys
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path

import typer

from dilaserve.outputs import open_console
from dilaserve.stack.cell_config import cell_config_of
from dilaserve.stack.cluster import run_cluster
from dilaserve.stack.data_dir import Addresses, lock_directory
from dilaserve.stack.first_run import summary, with_default_slo
from dilaserve.stack.options import Stack, check_options
from dilaserve.stack.ports import check_free
from dilaserve.stack.safe_output import BrokenPipeSafeStream
from dilaserve.stack.services import option_settings
from dilaserve.stack.up_options import UpOptions, with_up_options
from services.gateway.listeners import server_tls
from shared.bus.users import BusUser
from shared.logs import configure_logs
from shared.settings import ServiceSettings, read_settings, to_environ

EXAMPLE = "Example: dilaserve up --port 8000 --instances 2x1 --slo 5"
QUESTION = "We have 10 lemons, get 22 more and share them equally among 2 bags. How many lemons does each bag get?"


@with_up_options
def up(options: UpOptions) -> None:
    """Start the whole cluster on this machine: NATS, Postgres, gateway, scheduler, workers, reconfigurator.

    Prints the address when it is ready. Ctrl-C (or SIGTERM) finishes running requests, then stops everything.
    """
    given = check_options(options)
    stack = with_default_slo(given)
    # The result of this one is not used: it reports unusable files before the start.
    server_tls(str(options.tls_certificate or ""), str(options.tls_key or ""))
    config = cell_config_of({**os.environ, **to_environ(option_settings(BusUser.SCHEDULER, stack))})
    settings = read_settings(ServiceSettings, os.environ)
    configure_logs("up", level=settings.log_level, form=settings.log_format)
    with (
        lock_directory(options.data_dir),
        redirect_stdout(BrokenPipeSafeStream(sys.stdout)),
        redirect_stderr(BrokenPipeSafeStream(sys.stderr)),
    ):
        check_free(options.host, options.port)
        for metrics in stack.metrics_ports.values():
            check_free(settings.metrics_host, metrics, "--metrics-port")
        lines = "".join(f"  {line}\n" for line in summary(stack, given, config))
        on_start, on_ready = partial(typer.echo, lines, nl=False), partial(_print_ready, stack)
        asyncio.run(run_cluster(stack, config, on_start, on_ready))


def _print_ready(stack: Stack, addresses: Addresses) -> None:
    """Print the cluster's address and the next steps."""
    console = open_console()
    count, name, program = len(stack.instances), stack.model_name, shlex.quote(_program())
    data_dir = shlex.quote(str(stack.options.data_dir))
    instances = "1 instance" if count == 1 else f"{count} instances"
    key = " -H 'Authorization: Bearer KEY'" if stack.auth else ""
    console.print(f"\n[bold green]DiLaServe is ready[/] on [bold]{addresses.url}[/] ({name}, {instances})\n")
    console.print(
        f"  curl {addresses.url}/v1/chat/completions -H 'Content-Type: application/json'{key} \\\n"
        '    -d \'{"model": "' + name + '", "messages": [{"role": "user", "content": "' + QUESTION + "\"}]}'\n",
        markup=False,
    )
    if stack.auth:
        console.print(f"  API keys:       {program} keys create NAME --data-dir {data_dir}", markup=False)
    if ports := list(stack.metrics_ports.values()):
        where = f"{addresses.url}/metrics, and on ports {ports[0]} to {ports[-1]}"
        console.print(f"  Metrics:        {where}", markup=False)
    console.print(
        f"  Console:        {addresses.url}/\n"
        f"  OpenAI clients: base_url={addresses.url}/v1, {'the' if stack.auth else 'any'} api_key\n"
        f"  Cluster:        {program} status --data-dir {data_dir}\n"
        "  Stop:           Ctrl-C\n",
        markup=False,
    )


def _program() -> str:
    """How the user calls this command: by name, or by path if the name is not on the PATH."""
    return "dilaserve" if shutil.which("dilaserve") else os.path.relpath(Path(sys.executable).with_name("dilaserve"))
