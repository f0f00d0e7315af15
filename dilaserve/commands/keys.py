"""Create, list and revoke API keys (required by `dilaserve up --auth`)."""

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.markup import escape
from rich.table import Table

from dilaserve.outputs import open_console
from dilaserve.stack.data_dir import read_addresses
from dilaserve.stack.database import in_database
from shared.database.key_store import create_key, read_keys, revoke_key
from shared.errors import BadInput

EXAMPLE = "Example: dilaserve keys create alice --requests-per-minute 60 --concurrency 8"
MAX_LIMIT = 2**31 - 1  # of the database's integers

keys = typer.Typer(help=__doc__)

DataDir = Annotated[Path, typer.Option(help="Data directory of a stack on this machine.")]
DatabaseUrl = Annotated[str | None, typer.Option(help="Database URL; default: the stack's.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@keys.command(epilog=EXAMPLE)
def create(
    name: Annotated[str, typer.Argument(help="Owner of the key.")],
    *,
    requests_per_minute: Annotated[
        int | None, typer.Option(min=1, max=MAX_LIMIT, help="Requests per minute; default: no limit.")
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option(min=1, max=MAX_LIMIT, help="Requests in flight; default: no limit.")
    ] = None,
    max_priority: Annotated[int, typer.Option(min=-100, max=100, help="Highest priority of its requests.")] = 0,
    operator: Annotated[bool, typer.Option("--operator", help="Let it see the requests of all keys.")] = False,
    store_responses: Annotated[
        bool, typer.Option("--store-responses", help="Store its responses for a day, for `previous_response_id`.")
    ] = False,
    data_dir: DataDir = Path(".data"),
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Create a key and print its secret. The secret is shown only now; the database stores its hash."""
    if not name.strip():
        raise BadInput("NAME must not be empty: it names the owner of the key")
    limits = (requests_per_minute, concurrency, max_priority)
    key, secret = in_database(
        database_url or read_addresses(data_dir).database_url,
        lambda engine: create_key(engine, name, *limits, operator=operator, stores_responses=store_responses),
    )
    if json:
        typer.echo(msgspec.json.encode(asdict(key) | {"secret": secret}))
    else:
        typer.echo(f"key {key.key_id} for {name}; its secret, shown only now:")
        typer.echo(secret)
        if database_url is None and not read_addresses(data_dir).auth:
            typer.echo("The stack serves requests without a key, too; `dilaserve up --auth` requires one.")


@keys.command("list", epilog="Example: dilaserve keys list --json")
def list_keys(*, data_dir: DataDir = Path(".data"), database_url: DatabaseUrl = None, json: Json = False) -> None:
    """Show all keys and their limits, without secrets."""
    found = list(in_database(database_url or read_addresses(data_dir).database_url, read_keys).values())
    if json:
        typer.echo(msgspec.json.encode({"keys": found}))
        return
    table = Table("key", "name", "requests/min", "in flight", "max priority", "role", "created", "revoked", box=None)
    for key in found:
        rate, concurrency = key.requests_per_minute or "any", key.concurrency or "any"
        role = ", ".join(["operator"] * key.operator + ["stores responses"] * key.stores_responses)
        times = [f"{at:%Y-%m-%d %H:%M}" if at else "" for at in (key.created_at, key.revoked_at)]
        table.add_row(key.key_id, escape(key.name), str(rate), str(concurrency), str(key.max_priority), role, *times)
    open_console().print(table)


@keys.command(epilog="Example: dilaserve keys revoke 1f3a5b7c")
def revoke(
    key_id: Annotated[str, typer.Argument(help="Key id, as `dilaserve keys list` shows it.")],
    *,
    data_dir: DataDir = Path(".data"),
    database_url: DatabaseUrl = None,
) -> None:
    """Revoke a key. It takes effect within two seconds."""
    in_database(database_url or read_addresses(data_dir).database_url, partial(revoke_key, key_id=key_id))
    typer.echo(f"key {key_id} is revoked")
