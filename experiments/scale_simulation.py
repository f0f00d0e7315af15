"""Many cells of 64 instances behind gateways, in virtual time, beside one ideal cell with the instances of all.

    python -m experiments.scale_simulation --cells 1,4,16
    python -m experiments.scale_simulation --cells 4 --lost 32

The gateways choose a cell for each request with the function of the live gateway (`services/gateway/routing.py`), by
the slack that each cell's scheduler publishes once a second; a gateway knows only the requests that it has sent itself.
The trace is a sample of the real-world trace: some seconds of several hours of the day, with the rate in proportion to
the instances. The ideal cell knows all requests and instances at once.
"""

import math
import multiprocessing
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from experiments.paper.files import PROFILE, STEPS
from experiments.report import RESULTS, Report, target_list
from services.gateway.routing import CellLoad, route
from services.scheduler.settings import SchedulerSettings
from shared.arrays import Int64
from shared.messages.stats import STATS_S
from shared.profile import read_profile
from simulator.lengths import DATA, sharegpt_lengths
from simulator.result import Records
from simulator.scenario import Scenario, build_cluster, with_trained_predictor
from simulator.steps_table import read_steps
from simulator.workload import DAY, ArrivalTrace, varying_rate_trace

INSTANCES = 64  # of a cell
RPS_PER_INSTANCE = 20.0 / 16  # peak rate of the trace, as on the paper's 16 instances
GATEWAYS = 4
MAX_LOSS = 0.01  # of attainment against the ideal cell
MAX_CPU_RATIO = 1.2  # of the CPU time per request to that of one cell
COLUMNS = (
    *("cells", "instances", "requests", "choice", "SLO met, %", "one ideal cell, %", "mean threshold", "ideal"),
    *("fewest and most requests of a cell", "cycles per request", "steps per request"),
    *("scheduler's CPU, ms per request", "of one cell meanwhile"),
)
NOTES = f"""Cells of {INSTANCES} TP-1 instances at {RPS_PER_INSTANCE * INSTANCES:g} requests/s per cell at the peak,
{GATEWAYS} gateways, policy dilaserve, dual cache, the trace's default SLO. One ideal cell has the instances and the
requests of all cells. *random*: each request goes to any cell, as by a subject that the bus maps. The scheduler's CPU
time is that of its core's cycles. It depends on what else the machine runs, so one cell is simulated again and again
meanwhile; the cycles and steps of a request do not depend on it: they are what the schedulers have to do."""
Choice = Callable[[int, Callable[[int], CellLoad], random.Random], int]


def by_slack(cells: int, load_of: Callable[[int], CellLoad], source: random.Random) -> int:
    """The choice of a gateway."""
    return next(route(cells, load_of, source))


def at_random(cells: int, _load_of: Callable[[int], CellLoad], source: random.Random) -> int:
    """The choice of a bus that maps a subject to those of the cells."""
    return source.randrange(cells)


CHOICES: dict[str, Choice] = {"slack": by_slack, "random": at_random}


def scenario_of(instances: int) -> Scenario:
    return Scenario(
        profile=read_profile(PROFILE),
        steps=read_steps(STEPS),
        instances=(1,) * instances,
        settings=SchedulerSettings(model="simulated", policy="dilaserve", cache="dual"),
    )


class SimulatedCells:
    """Some of the cells of one model, each with a scheduler of its own."""

    def __init__(self, instances: Sequence[int], workload: ArrivalTrace) -> None:
        """`instances`: of each cell."""
        live = with_trained_predictor(scenario_of(0), workload).live
        self._cells = [build_cluster(replace(scenario_of(number), live=live), workload) for number in instances]

    def advance(self, until_s: float, arrivals: Sequence[Sequence[int]]) -> list[CellLoad]:
        """Serve the requests that arrive at each cell, until this time. Returns: what the schedulers then publish."""
        for cell, requests in zip(self._cells, arrivals, strict=True):
            for request in requests:
                cell.arrive(request)
            cell.run_until(until_s)
        return [CellLoad(slack=cell.slack, requests=cell.unfinished) for cell in self._cells]

    def finish(self) -> list[Records]:
        """Serve all requests to their ends."""
        for cell in self._cells:
            cell.run_until(math.inf)
        return [cell.records for cell in self._cells]


def serve_cells(connection: Connection, instances: Sequence[int], workload: ArrivalTrace) -> None:
    """Run some cells in this process; each message is a pair for `advance`, the last one None."""
    simulated = SimulatedCells(instances, workload)
    while (order := connection.recv()) is not None:
        connection.send(simulated.advance(*order))
    connection.send(simulated.finish())


class ParallelCells:
    """As SimulatedCells, in several processes."""

    def __init__(self, instances: Sequence[int], workload: ArrivalTrace, processes: int) -> None:
        context = multiprocessing.get_context("spawn")
        parts = [part.tolist() for part in np.array_split(np.array(instances), min(len(instances), processes))]
        self._shares = [len(part) for part in parts]
        self._connections = list[Connection]()
        for part in parts:
            here, there = context.Pipe()
            context.Process(target=serve_cells, args=(there, part, workload), daemon=True).start()
            self._connections.append(here)

    def advance(self, until_s: float, arrivals: Sequence[Sequence[int]]) -> list[CellLoad]:
        first = 0
        for connection, share in zip(self._connections, self._shares, strict=True):
            connection.send((until_s, arrivals[first : first + share]))
            first += share
        return [load for connection in self._connections for load in connection.recv()]

    def finish(self) -> list[Records]:
        for connection in self._connections:
            connection.send(None)
        return [records for connection in self._connections for records in connection.recv()]


class ReferenceCell:
    """One cell that serves its trace again and again in a process of its own, beside what is measured: the machine's
    other load slows both."""

    def __init__(self, workload: ArrivalTrace) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, there = context.Pipe()
        context.Process(target=serve_repeatedly, args=(there, workload), daemon=True).start()

    def finish(self) -> float:
        """End after the present round. Returns: the scheduler's CPU seconds per request."""
        self._connection.send(None)
        cpu_s: float = self._connection.recv()
        return cpu_s


def serve_repeatedly(connection: Connection, workload: ArrivalTrace) -> None:
    """Serve the workload with one cell until a message arrives; answer with the CPU seconds per request."""
    cpu_s, rounds, every = 0.0, 0, [range(len(workload))]
    while not rounds or not connection.poll():
        cell = SimulatedCells([INSTANCES], workload)
        cell.advance(math.inf, every)
        cpu_s, rounds = cpu_s + cell.finish()[0].cycle_s, rounds + 1
    connection.send(cpu_s / (rounds * len(workload)))


@dataclass(frozen=True, slots=True)
class ScaleResult:
    """The figures of one run over all cells."""

    met: float  # share of the requests
    mean_threshold: float
    of_cell: list[int]  # requests of each cell
    cpu_s: float  # of all schedulers, as the next two
    cycles: int
    steps: int

    @classmethod
    def of(cls, records: Sequence[Records], cell_of: Int64) -> "ScaleResult":
        """`cell_of`: the cell of each request, [n]."""
        met = np.array([each.met for each in records])[cell_of, np.arange(len(cell_of))]
        tokens = sum(each.tokens_at for each in records)
        thresholds = np.linspace(0.0, 1.0, len(records[0].tokens_at))
        counts = np.bincount(cell_of, minlength=len(records)).tolist()
        mean_threshold = float(np.average(thresholds, weights=tokens))
        cpu_s, cycles = sum(each.cycle_s for each in records), sum(each.cycles for each in records)
        steps = sum(each.steps_run for each in records)
        return cls(float(met.mean()), mean_threshold, counts, cpu_s, cycles, steps)


def simulate_cells(
    cells: SimulatedCells | ParallelCells, number: int, workload: ArrivalTrace, choose: Choice
) -> ScaleResult:
    """Serve the workload with this number of cells; each request arrives at one of GATEWAYS gateways."""
    source = random.Random(0)
    cell_of = np.zeros(len(workload), dtype=np.int64)
    loads, start_s, end_s = [CellLoad(slack=1.0)] * number, 0.0, float(workload.arrival_s[-1])
    while start_s <= end_s:
        first, last = workload.arrival_s.searchsorted([start_s, start_s + STATS_S])
        arrivals: list[list[int]] = [[] for _ in range(number)]
        sent = np.zeros((GATEWAYS, number), dtype=np.int64)
        for request in range(int(first), int(last)):
            known = sent[source.randrange(GATEWAYS)]
            cell = choose(number, _loads_of_gateway(loads, known), source)
            known[cell] += 1
            cell_of[request] = cell
            arrivals[cell].append(request)
        start_s += STATS_S
        loads = cells.advance(start_s, arrivals)
    return ScaleResult.of(cells.finish(), cell_of)


def _loads_of_gateway(loads: Sequence[CellLoad], sent: Int64) -> Callable[[int], CellLoad]:
    """The load of a cell, for a gateway; `sent`: the requests that it has sent to each since the load was published."""
    return lambda cell: replace(loads[cell], sent=int(sent[cell]))


def sample(cells: int, hours: Sequence[int], seconds: float) -> ArrivalTrace:
    """Some seconds of each hour, one after the other, at the rate for these cells."""
    rates = DAY[list(hours)] * RPS_PER_INSTANCE * INSTANCES * cells
    return varying_rate_trace(sharegpt_lengths(DATA), rates, seconds, np.random.default_rng(0))


def main(
    *,
    cells: Annotated[str, typer.Option(help="Numbers of cells.")] = "1,4,16,64",
    hours: Annotated[str, typer.Option(help="Hours of the day that are sampled, in this order.")] = "9,15,16",
    seconds: Annotated[float, typer.Option(min=1, help="Seconds of each hour.")] = 15.0,
    choices: Annotated[str, typer.Option(help="How a cell is chosen: slack, random.")] = "slack,random",
    lost: Annotated[int, typer.Option(help="Instances that the first cell has lost.")] = 0,
    processes: Annotated[int, typer.Option(min=1, help="Processes that simulate the cells.")] = 2,
    out: Annotated[Path, typer.Option(help="Write the report to this file; if it exists, append to it.")] = RESULTS
    / "scale_simulation.md",
) -> None:
    """Print the table."""
    report = Report("Many cells beside one ideal cell", f"{seconds:g} s of each of the hours {hours}.")
    if not out.exists():
        report.add(NOTES)
    report.add_columns(*COLUMNS)
    losses, cpu_ratios, sampled = list[float](), list[float](), [int(hour) for hour in hours.split(",")]
    for number in map(int, cells.split(",")):
        workload = sample(number, sampled, seconds)
        instances = [INSTANCES - lost, *[INSTANCES] * (number - 1)]
        ideal = run([sum(instances)], workload, by_slack, 1)
        for name in choices.split(",") if number > 1 else ["slack"]:
            reference = ReferenceCell(sample(1, sampled, seconds))
            found = run(instances, workload, CHOICES[name], processes)
            cpu_s, reference_s = found.cpu_s / len(workload), reference.finish()
            if name == "slack":
                losses.append(ideal.met - found.met)
                cpu_ratios.append(cpu_s / reference_s)
            shares = f"{min(found.of_cell):,} to {max(found.of_cell):,}"
            figures = [f"{100 * found.met:.2f}", f"{100 * ideal.met:.2f}"]
            figures += [f"{found.mean_threshold:.3f}", f"{ideal.mean_threshold:.3f}", shares]
            figures += [f"{count / len(workload):.1f}" for count in (found.cycles, found.steps)]
            figures += [f"{1e3 * seconds_each:.2f}" for seconds_each in (cpu_s, reference_s)]
            report.add_row(number, f"{sum(instances):,}", f"{len(workload):,}", name, *figures)
    targets = {
        "attainment within 1 point of one ideal cell": max(losses) <= MAX_LOSS,
        "the scheduler's CPU time per request within 20 % of that of one cell": max(cpu_ratios) <= MAX_CPU_RATIO,
    }
    report.add(target_list(targets))
    report.write(out, append=True)


def run(instances: Sequence[int], workload: ArrivalTrace, choose: Choice, processes: int) -> ScaleResult:
    """One run in processes of its own. `instances`: of each cell."""
    return simulate_cells(ParallelCells(instances, workload, processes), len(instances), workload, choose)


if __name__ == "__main__":
    typer.run(main)
