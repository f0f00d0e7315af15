"""`dilaserve profile`: measures the latency profile of a model on this machine."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dilaserve.outputs import check_file
from shared.errors import BadInput

if TYPE_CHECKING:
    from shared.profile import LatencyProfile

EXAMPLE = "Example: dilaserve profile --model models/demo --tp 1,2 --out PROFILE.csv"
DEVICES = ("auto", "cpu", "cuda")
DTYPES = ("auto", "float32", "bfloat16")


def profile(
    *,
    model: Annotated[str, typer.Option(help="Checkpoint directory, or a hub id.")],
    out: Annotated[Path, typer.Option(help="Where the profile goes, as CSV.")],
    tp: Annotated[str, typer.Option(help="Tensor-parallel degrees, comma-separated.")] = "1",
    max_tokens: Annotated[int, typer.Option(min=32, help="Largest batch, in tokens.")] = 8192,
    repeats: Annotated[int, typer.Option(min=1, max=14, help="Runs of each point; their median counts.")] = 5,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    dtype: Annotated[str, typer.Option(help="auto, float32 or bfloat16.")] = "auto",
    threads: Annotated[int, typer.Option(min=0, help="CPU threads of each rank; 0: an equal share.")] = 0,
    database_url: Annotated[str | None, typer.Option(help="Postgres that shall keep it, too.")] = None,
) -> None:
    """Measure seconds per step by tokens of the batch, for recompute and cache steps, and write PROFILE.csv."""
    from dilaserve.stack.options import check_choice  # noqa: PLC0415
    from services.worker.model.model_loading import CacheSize, ModelChoice, device_name, open_runner  # noqa: PLC0415
    from services.worker.profile.profiler import ProfilePlan, batch_sizes, cache_tokens_for, measure  # noqa: PLC0415
    from shared.logs import configure_logs  # noqa: PLC0415
    from shared.model_files import default_model_name  # noqa: PLC0415
    from shared.profile import LatencyProfile, write_profile  # noqa: PLC0415

    configure_logs("profile", level="warning")
    degrees = _degrees(tp)
    check_choice("--device", device, DEVICES)
    check_choice("--dtype", dtype, DTYPES)
    check_file("--out", out)
    if database_url is not None:
        _check_database(database_url)
    plan = ProfilePlan(batch_sizes(max_tokens), repeats)
    measured, on = [], ""
    with _progress() as progress:
        task = progress.add_task("", total=2 * len(plan.batch_tokens) * len(degrees))
        for degree in degrees:

            def say(kind: Any, tokens: int, degree: int = degree) -> None:
                text = f"tp {degree}, {kind.name.lower()} step of {tokens} tokens"
                progress.update(task, advance=1, description=text)

            choice = ModelChoice(model, device, dtype, degree, threads)
            with open_runner(choice, CacheSize(1, cache_tokens_for(plan))) as runner:
                measured.append(measure(runner, degree, plan, say))
                on = device_name(runner.device)
    whole = LatencyProfile({key: curve for part in measured for key, curve in part.curves.items()})
    write_profile(out, whole)
    if database_url is not None:
        _keep(database_url, default_model_name(model), on, whole)


def _check_database(url: str) -> None:
    """Before the measurement, not after it. Raises: BadInput if it does not answer."""
    import asyncio  # noqa: PLC0415

    from shared.database.schema import database_answers  # noqa: PLC0415

    if not asyncio.run(database_answers(url)):
        raise BadInput(f"--database-url {url}: Postgres does not answer")


def _keep(url: str, model: str, device: str, measured: "LatencyProfile") -> None:
    import asyncio  # noqa: PLC0415

    from shared.database.profile_store import save_profile  # noqa: PLC0415
    from shared.database.schema import open_database, upgrade  # noqa: PLC0415

    async def keep() -> None:
        engine = open_database(url)
        try:
            await upgrade(engine)
            await save_profile(engine, model, device, measured)
        finally:
            await engine.dispose()

    asyncio.run(keep())


def _degrees(text: str) -> list[int]:
    try:
        degrees = [int(part) for part in text.split(",")]
    except ValueError:
        degrees = []
    if not degrees or min(degrees) < 1 or len(set(degrees)) < len(degrees):
        raise BadInput(f"--tp must be different numbers of at least 1, comma-separated, got {text}")
    return degrees


def _progress() -> Any:
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import Progress  # noqa: PLC0415

    console = Console(stderr=True)
    return Progress(console=console, transient=True, disable=not console.is_terminal)
