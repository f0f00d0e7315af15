"""`dilaserve status`: the cluster: instances, load, thresholds, SLO attainment."""

from pathlib import Path
from typing import Annotated

import typer

EXAMPLE = "Example: dilaserve status --watch"


def status(
    *,
    data_dir: Annotated[Path, typer.Option(help="The data directory of a stack on this machine.")] = Path(".data"),
    url: Annotated[str | None, typer.Option(help="The gateway; default: the stack's.")] = None,
    nats_url: Annotated[str | None, typer.Option(help="The NATS server; default: the stack's.")] = None,
    cell: Annotated[str, typer.Option(help="The cell to ask about.")] = "cell0",
    watch: Annotated[bool, typer.Option("--watch", help="Go on showing it, until Ctrl-C.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show the instances of the cluster, its load, thresholds and SLO attainment, and whether it serves."""
    import asyncio  # noqa: PLC0415

    import msgspec  # noqa: PLC0415

    from dilaserve.stack.data_dir import read_addresses  # noqa: PLC0415
    from dilaserve.stack.probes import check_url  # noqa: PLC0415
    from shared.errors import BadInput  # noqa: PLC0415
    from shared.logs import configure_logs  # noqa: PLC0415
    from shared.settings import CellName  # noqa: PLC0415

    if watch and json:
        raise BadInput("--watch is a view for people, --json for programs: give one of them")
    configure_logs("status", level="error")
    try:
        msgspec.convert(cell, CellName)
    except msgspec.ValidationError as error:
        raise BadInput(f"--cell {cell}: {error}") from None
    url = check_url("--url", url) if url else None
    if url is None or nats_url is None:
        addresses = read_addresses(data_dir)
        url, nats_url = url or addresses.url, nats_url or addresses.nats_url
    if watch:
        asyncio.run(_watch(url, nats_url, cell))
    else:
        asyncio.run(_show(url, nats_url, cell, as_json=json))


async def _show(url: str, nats_url: str, cell: str, *, as_json: bool) -> None:
    import msgspec  # noqa: PLC0415
    from rich.console import Console  # noqa: PLC0415

    from dilaserve.stack.observer import open_observer  # noqa: PLC0415
    from dilaserve.stack.report import rendered  # noqa: PLC0415

    async with open_observer(url, nats_url, cell) as observer:
        report = await observer.report()
    if as_json:
        typer.echo(msgspec.json.encode(report))
    else:
        Console(soft_wrap=True, highlight=False).print(rendered(report))


async def _watch(url: str, nats_url: str, cell: str) -> None:
    """A live view, as often as the scheduler speaks, until Ctrl-C."""
    import asyncio  # noqa: PLC0415
    import signal  # noqa: PLC0415

    from rich.live import Live  # noqa: PLC0415

    from dilaserve.stack.observer import open_observer  # noqa: PLC0415
    from dilaserve.stack.report import rendered  # noqa: PLC0415
    from shared.tasks import cancel  # noqa: PLC0415

    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stop.set)
    async with open_observer(url, nats_url, cell) as observer:
        stopping = asyncio.create_task(stop.wait())
        with Live(auto_refresh=False) as live:
            while not stop.is_set():
                report = asyncio.create_task(observer.report())
                await asyncio.wait({report, stopping}, return_when=asyncio.FIRST_COMPLETED)
                if report.done():
                    live.update(rendered(report.result()), refresh=True)
                await cancel([report])
        await cancel([stopping])
