"""`dilaserve profile`: measures the latency profile of a model on this machine."""

import shlex
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from dilaserve.outputs import check_file, open_progress

EXAMPLE = "Example: dilaserve profile --model models/demo --tp 1,2 --out PROFILE.csv"


def profile(
    *,
    model: Annotated[str, typer.Option(help="Checkpoint directory or hub id.")],
    out: Annotated[Path, typer.Option(help="Output file of the profile (CSV).")],
    tp: Annotated[str, typer.Option(help="TP degrees, comma-separated.")] = "1",
    max_tokens: Annotated[int, typer.Option(min=32, help="Largest batch in tokens.")] = 8192,
    repeats: Annotated[int, typer.Option(min=1, max=14, help="Runs per point; the median counts.")] = 5,
    device: Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="Device.")] = "auto",
    dtype: Annotated[Literal["auto", "float32", "bfloat16"], typer.Option(help="Number format.")] = "auto",
    threads: Annotated[int, typer.Option(min=0, help="CPU threads per rank; 0: an equal share.")] = 0,
    database_url: Annotated[str | None, typer.Option(help="Also store the profile in this Postgres.")] = None,
) -> None:
    """Measure seconds per iteration by tokens in the batch, for recompute steps, cache steps and both together, and
    write PROFILE.csv."""
    import asyncio  # noqa: PLC0415

    from dilaserve.profiling import measure_degrees  # noqa: PLC0415
    from dilaserve.stack.options import read_integers  # noqa: PLC0415
    from dilaserve.stack.probes import check_answers, postgres_answers  # noqa: PLC0415
    from services.worker.model.model_loading import ModelChoice  # noqa: PLC0415
    from services.worker.profile.profiler import full_plan  # noqa: PLC0415
    from shared.logs import configure_logs  # noqa: PLC0415
    from shared.model_files import default_model_name  # noqa: PLC0415
    from shared.profile import LatencyProfile, write_profile  # noqa: PLC0415
    from shared.urls import without_credentials  # noqa: PLC0415

    configure_logs("profile", level="warning")
    degrees = sorted(set(read_integers("--tp", tp)))
    check_file("--out", out)
    if database_url is not None:
        shown = without_credentials(database_url)
        asyncio.run(check_answers(postgres_answers, database_url, f"--database-url {shown}: Postgres"))
    plan = full_plan(max_tokens, repeats)
    measured, measured_on = LatencyProfile(), ""
    choice = ModelChoice(model, device, dtype, threads=threads)
    with open_progress() as progress:
        for of_degree, name in measure_degrees(choice, degrees, plan, progress):
            measured, measured_on = measured.completed_from(of_degree), name
    write_profile(out, measured)
    if database_url is not None:
        from dilaserve.stack.database import in_database  # noqa: PLC0415
        from shared.database.profile_store import save_profile  # noqa: PLC0415  (a worker's image lacks its packages)

        save = partial(save_profile, model=default_model_name(model), device=measured_on, profile=measured)
        in_database(database_url, save)
    serve = shlex.join(["dilaserve", "up", "--model", model, "--profile", str(out)])
    typer.echo(f"{out} is written: TP {tp}. Next: {serve}")
