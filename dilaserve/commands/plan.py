"""`dilaserve plan`: both planning stages, no cluster."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import typer

from dilaserve.outputs import check_file, number, open_progress, percent
from services.reconfigurator.planning.plan import Plan, read_current
from services.reconfigurator.planning.plan_input import PlanInput, read_workload
from services.reconfigurator.planning.planner import make_plan
from shared.errors import BadInput, DilaserveError
from shared.profile import read_profile

if TYPE_CHECKING:
    from simulator.cluster_size import ClusterSearch, SizedCluster

EXAMPLE = "Example: dilaserve plan --workload workload.json --profile profile.csv --out plan.json"


def plan(
    *,
    workload: Annotated[Path, typer.Option(help="WORKLOAD.json: classes, thresholds, TP degrees, nodes.")],
    profile: Annotated[Path, typer.Option(help="PROFILE.csv: the latency profile, as `dilaserve profile` writes it.")],
    out: Annotated[Path, typer.Option(help="Write the plan to this file.")],
    current: Annotated[Path | None, typer.Option(help="PLAN.json whose instances run now; default: none.")] = None,
    solver: Annotated[Literal["cbc"], typer.Option(help="Solver of the integer programs.")] = "cbc",  # noqa: ARG001
    cache: Annotated[bool, typer.Option("--cache/--no-cache", help="Plan for serving with a KV cache.")] = True,
    min_threshold: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="Find the fewest GPUs with at least this mean threshold; nodes then give the GPUs per node.",
        ),
    ] = None,
    min_attainment: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Find the fewest GPUs with at least this SLO attainment, simulated."),
    ] = None,
    time_limit: Annotated[float, typer.Option(min=0.1, help="Seconds for each stage.")] = 60.0,
    json: Annotated[bool, typer.Option("--json", help="Print the plan as one JSON object.")] = False,
) -> None:
    """Plan the number, TP degrees and GPUs of instances, and the steps to get there; or find the smallest cluster."""
    check_file("--out", out)
    given, costs = read_workload(workload), read_profile(profile)
    if min_threshold is None and min_attainment is None:
        running = read_current(current) if current is not None else []
        p = PlanInput(given, costs, cached=cache)
        made = make_plan(p, running, time_limit_s=time_limit)
        report, more = _report(made), dict[str, Any]()
    else:
        if current is not None:
            raise BadInput("--current: not with --min-threshold or --min-attainment, which plan a new cluster")
        from simulator.cluster_size import ClusterSearch  # noqa: PLC0415

        search = ClusterSearch(
            workload=given,
            profile=costs,
            cached=cache,
            min_threshold=min_threshold or 0.0,
            min_attainment=min_attainment,
            time_limit_s=time_limit,
        )
        made, tried = _smallest(search)
        gpus = sum(len(instance.gpus) for instance in made.instances)
        report = f"smallest cluster: {gpus} GPUs\n{_table(tried)}\n{_report(made)}"
        more = {"gpus": gpus, "tried": tried}
    encoded = msgspec.json.encode(msgspec.structs.asdict(made) | more)
    out.write_bytes(msgspec.json.format(encoded) + b"\n")
    typer.echo(encoded if json else report)


def _smallest(search: "ClusterSearch") -> "tuple[Plan, list[SizedCluster]]":
    """Raises: BadInput if no threshold is high enough; DilaserveError if no number of GPUs suffices."""
    highest = max(search.workload.thresholds)
    if search.min_threshold > highest:
        raise BadInput(
            f"--min-threshold {search.min_threshold:g}: accepted: at most the highest threshold, {highest:g}"
        )
    with open_progress() as progress:
        task = progress.add_task("clusters", total=None)
        found = search.run(lambda cluster: progress.update(task, advance=1, description=f"tried {cluster.gpus} GPUs"))
    if found is None:
        raise DilaserveError(
            "no number of GPUs suffices: some SLO is too short for these TP degrees, or the targets too high"
        )
    return found


def _table(tried: "Sequence[SizedCluster]") -> str:
    """The clusters that were tried, as text."""
    lines = [f"{'GPUs':>5}  {'planned threshold':>17}  {'simulated':>9}  {'attainment':>10}  instances"]
    for each in tried:
        instances = ", ".join(f"{count} of TP-{degree}" for degree, count in each.instances_per_tp.items())
        simulated, attained = number(each.mean_threshold), percent(each.slo_attainment)
        figures = f"{each.gpus:>5}  {number(each.planned_threshold):>17}  {simulated:>9}  {attained:>10}"
        lines.append(f"{figures}  {instances}{'' if each.suffices else ' (too small)'}")
    return "\n".join(lines)


def _report(made: Plan) -> str:
    instances = ", ".join(f"{count} of TP-{degree}" for degree, count in made.instances_per_tp.items())
    quality = f"mean threshold {made.mean_threshold:.4f}, SLO slack {made.slack_s:.4g}"
    lines = [
        f"{made.status}{f' ({made.reason})' if made.reason else ''}: {instances}; {quality}",
        f"{made.preserved} instances preserved, {len(made.steps)} steps; solved in {made.solve_s:.1f} s",
        f"{'reconfigure' if made.decision.take else 'stay'}: {made.decision.reason}",
    ]
    return "\n".join(lines)
