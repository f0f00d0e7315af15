"""`dilaserve status`: the cluster's instances and whether the gateway is ready."""

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from shared.messages.instances import Instance

EXAMPLE = "Example: dilaserve status --json"


def status(
    *,
    data_dir: Annotated[Path, typer.Option(help="The data directory of a stack on this machine.")] = Path(".data"),
    url: Annotated[str | None, typer.Option(help="The gateway; default: the stack's.")] = None,
    nats_url: Annotated[str | None, typer.Option(help="The NATS server; default: the stack's.")] = None,
    cell: Annotated[str, typer.Option(help="The cell to ask about.")] = "cell0",
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show the instances of the cluster and whether it serves."""
    import asyncio  # noqa: PLC0415

    import msgspec  # noqa: PLC0415
    from rich.console import Console  # noqa: PLC0415

    from dilaserve.stack.data_dir import read_addresses  # noqa: PLC0415
    from dilaserve.stack.probes import gateway_ready  # noqa: PLC0415
    from shared.logs import configure_logs  # noqa: PLC0415

    configure_logs("status", level="error")
    if url is None or nats_url is None:
        addresses = read_addresses(data_dir)
        url, nats_url = url or addresses.url, nats_url or addresses.nats_url
    instances = asyncio.run(_instances(nats_url, cell))
    ready = asyncio.run(gateway_ready(url.rstrip("/")))
    if json:
        report = {"url": url, "ready": ready, "instances": instances}
        typer.echo(msgspec.json.encode(report))
        return
    console = Console(soft_wrap=True, highlight=False)
    console.print(f"gateway {url}: {'ready' if ready else 'not ready'}", markup=False)
    console.print(_table(instances))


async def _instances(nats_url: str, cell: str) -> list["Instance"]:
    """The registered instances, by name. Raises: BadInput if the server does not answer."""
    from functools import partial  # noqa: PLC0415

    from nats.js.errors import KeyNotFoundError, NoKeysError, NotFoundError  # noqa: PLC0415

    from dilaserve.stack.probes import check, nats_answers  # noqa: PLC0415
    from shared.bus import Bus  # noqa: PLC0415
    from shared.codec import decode  # noqa: PLC0415
    from shared.messages.instances import Instance  # noqa: PLC0415

    await check(partial(nats_answers, nats_url), f"NATS at {nats_url}")
    bus = await Bus.connect(nats_url, cell, name="status")
    found = []
    try:
        bucket = await bus.js.key_value(bus.subjects.instances_bucket)
        for key in sorted(await bucket.keys()):
            with suppress(KeyNotFoundError):  # gone since
                found.append(decode((await bucket.get(key)).value or b"", Instance))
    except (NotFoundError, NoKeysError):
        return []
    finally:
        await bus.close()
    return found


def _table(instances: list["Instance"]) -> object:
    from rich.table import Table  # noqa: PLC0415

    table = Table("instance", "state", "TP", "device", "model", "node", box=None)
    for item in instances:
        table.add_row(item.instance_id, item.state, str(item.tp_degree), item.device, item.model.name, item.node)
    return table
