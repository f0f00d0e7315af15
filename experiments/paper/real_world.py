"""The report's parts on the real-world trace: the stored runs of the policies, and the reports on 16 instances."""

from pathlib import Path
from statistics import fmean

from experiments.policies.points import POINTS
from experiments.policies.rows import SYSTEMS
from experiments.policies.runs import Run
from experiments.policies.store import RunStore
from experiments.real_world_trace import picture_of, report_of
from experiments.report import RESULTS, markdown_table

VERDICT = (
    "reproduced in virtual time: the policy `paper` and INFaaS attain about as much as in the paper, Llumnix more; the "
    "cost in accuracy is small, and reconfiguration makes low load faster"
)
POINT, ROWS = (
    "trace-20",
    {
        "dilaserve": "default policy",
        "paper-margin-0": "DiLaServe's, policy `paper`",
        "llumnix-0.9": "Llumnix",
        "infaas-0.9": "INFaaS",
    },
)
SEEDS = (10, 11, 12)


def policies() -> str:
    """The stored runs on the trace, as a table; those that are not finished are left out."""
    store, rows = RunStore(RESULTS / "policies.csv"), []
    for row, system in ROWS.items():
        found = [store.get(Run(POINTS[POINT], SYSTEMS[row], seed)) for seed in SEEDS]
        done = [figures for figures in found if figures is not None]
        if len(done) == len(SEEDS):
            columns = ((one.attainment, one.accuracy, one.mean_s, one.p99_s) for one in done)
            rows.append([system, *(f"{fmean(column):.2f}" for column in zip(*columns, strict=True))])
    return markdown_table(["system", "SLO attainment, %", "accuracy, %", "mean latency, s", "P99, s"], rows)


def study(directory: Path, name: str) -> str:
    """The report of a study below the directory without its title, and its picture."""
    report = directory / report_of(name)
    if not report.exists():
        return "Not run yet."
    text = report.read_text("utf-8").partition("\n\n")[2].strip()
    return f"{text}\n\n![{name}](../{picture_of(name)})"
