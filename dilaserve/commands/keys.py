"""`dilaserve keys`: API keys, made and revoked."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

    from shared.api_keys import ApiKey

EXAMPLE = "Example: dilaserve keys create alice --requests-per-minute 60 --concurrency 8"
LARGEST = 2**31 - 1  # that the database holds
T = TypeVar("T")

keys = typer.Typer(help="Make, list and revoke API keys (they are asked for with `dilaserve up --auth`).")

DataDir = Annotated[Path, typer.Option(help="The data directory of a stack on this machine.")]
DatabaseUrl = Annotated[str | None, typer.Option(help="The database; default: the stack's.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@keys.command(epilog=EXAMPLE)
def create(
    name: Annotated[str, typer.Argument(help="Whose it is.")],
    *,
    requests_per_minute: Annotated[int | None, typer.Option(min=1, max=LARGEST, help="None: no limit.")] = None,
    concurrency: Annotated[
        int | None, typer.Option(min=1, max=LARGEST, help="Requests at a time; none: no limit.")
    ] = None,
    max_priority: Annotated[
        int, typer.Option(min=-100, max=100, help="The highest priority its requests may ask for.")
    ] = 0,
    data_dir: DataDir = Path(".data"),
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Make a key and print its secret, which is shown this once: only its hash is kept."""
    from shared.database.key_store import create_key  # noqa: PLC0415

    async def make(engine: "AsyncEngine") -> "tuple[ApiKey, str]":
        return await create_key(engine, name, requests_per_minute, concurrency, max_priority)

    key, secret = _in_database(database_url, data_dir, make)
    if json:
        _print_json({**_fields(key), "secret": secret})
    else:
        typer.echo(f"key {key.key_id} for {name}; its secret, shown only now:")
        typer.echo(secret)


@keys.command("list", epilog="Example: dilaserve keys list --json")
def list_keys(*, data_dir: DataDir = Path(".data"), database_url: DatabaseUrl = None, json: Json = False) -> None:
    """Show every key with its limits; never its secret."""
    from rich.console import Console  # noqa: PLC0415
    from rich.markup import escape  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    from shared.database.key_store import read_keys  # noqa: PLC0415

    found = list(_in_database(database_url, data_dir, read_keys).values())
    if json:
        _print_json({"keys": [_fields(key) for key in found]})
        return
    table = Table("key", "name", "requests a minute", "at a time", "highest priority", "made", "revoked", box=None)
    for key in found:
        rate, at_once = key.requests_per_minute or "any", key.concurrency or "any"
        times = [f"{at:%Y-%m-%d %H:%M}" if at else "" for at in (key.created_at, key.revoked_at)]
        table.add_row(key.key_id, escape(key.name), str(rate), str(at_once), str(key.max_priority), *times)
    Console(soft_wrap=True, highlight=False).print(table)


@keys.command(epilog="Example: dilaserve keys revoke 1f3a5b7c")
def revoke(
    key_id: Annotated[str, typer.Argument(help="As `dilaserve keys list` shows it.")],
    *,
    data_dir: DataDir = Path(".data"),
    database_url: DatabaseUrl = None,
) -> None:
    """Make a key open nothing any more, within two seconds."""
    from functools import partial  # noqa: PLC0415

    from shared.database.key_store import revoke_key  # noqa: PLC0415

    _in_database(database_url, data_dir, partial(revoke_key, key_id=key_id))
    typer.echo(f"key {key_id} is revoked")


def _in_database(url: str | None, data_dir: Path, use: "Callable[[AsyncEngine], Awaitable[T]]") -> T:
    """Raises: BadInput if there is no such database; DilaserveError if it does not answer."""
    import asyncio  # noqa: PLC0415

    from sqlalchemy.exc import SQLAlchemyError  # noqa: PLC0415

    from dilaserve.stack.data_dir import read_addresses  # noqa: PLC0415
    from shared.database.schema import open_database, upgrade  # noqa: PLC0415
    from shared.errors import DilaserveError  # noqa: PLC0415

    async def run() -> T:
        engine = open_database(url or read_addresses(data_dir).database_url)
        try:
            await upgrade(engine)
            return await use(engine)
        except (SQLAlchemyError, OSError, TimeoutError) as error:
            raise DilaserveError(f"the database does not answer: {str(error).partition(chr(10))[0]}") from error
        finally:
            await engine.dispose()

    return asyncio.run(run())


def _fields(key: "ApiKey") -> dict[str, object]:
    return {field: getattr(key, field) for field in type(key).__slots__}


def _print_json(content: object) -> None:
    import msgspec  # noqa: PLC0415

    typer.echo(msgspec.json.encode(content))
