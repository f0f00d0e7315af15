"""`dilaserve plan`: both planning stages, no cluster."""

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from dilaserve.outputs import check_file
from services.reconfigurator.planning.plan import Plan, Solver, read_current

EXAMPLE = "Example: dilaserve plan --workload workload.json --profile profile.csv --out plan.json"


def plan(
    *,
    workload: Annotated[Path, typer.Option(help="WORKLOAD.json: classes, thresholds, TP degrees, nodes.")],
    profile: Annotated[Path, typer.Option(help="PROFILE.csv: the latency profile, as `dilaserve profile` writes it.")],
    out: Annotated[Path, typer.Option(help="Write the plan to this file.")],
    current: Annotated[Path | None, typer.Option(help="PLAN.json whose instances run now; default: none.")] = None,
    solver: Annotated[Solver, typer.Option(help="Solver of the integer programs.")] = Solver.CBC,
    cache: Annotated[bool, typer.Option("--cache/--no-cache", help="Plan for serving with a KV cache.")] = True,
    time_limit: Annotated[float, typer.Option(min=0.1, help="Seconds for each stage.")] = 60.0,
    json: Annotated[bool, typer.Option("--json", help="Print the plan as one JSON object.")] = False,
) -> None:
    """Plan the number, TP degrees and GPUs of instances, and the steps to get there."""
    from services.reconfigurator.planning.plan_input import plan_input, read_workload  # noqa: PLC0415
    from services.reconfigurator.planning.planner import make_plan  # noqa: PLC0415
    from shared.profile import read_profile  # noqa: PLC0415

    check_file("--out", out)
    p = plan_input(read_workload(workload), read_profile(profile), cached=cache)
    running = read_current(current) if current is not None else []
    made = make_plan(p, running, solver=solver, time_limit_s=time_limit)
    encoded = msgspec.json.encode(made)
    out.write_bytes(msgspec.json.format(encoded) + b"\n")
    typer.echo(encoded if json else _report(made))


def _report(made: Plan) -> str:
    """A short summary."""
    instances = ", ".join(f"{count} of TP-{degree}" for degree, count in made.instances_per_tp.items())
    quality = f"mean threshold {made.mean_threshold:.4f}, SLO slack {made.slack_s:.4g}"
    lines = [
        f"{made.status}{f' ({made.reason})' if made.reason else ''}: {instances}; {quality}",
        f"{made.preserved} instances preserved, {len(made.steps)} steps; solved in {made.solve_s:.1f} s",
        f"{'reconfigure' if made.decision.take else 'stay'}: {made.decision.reason}",
    ]
    return "\n".join(lines)
