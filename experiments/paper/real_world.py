"""The report's section on the real-world trace: the paper's table, and the experiment's own report."""

from statistics import fmean

from experiments.policies.points import POINTS
from experiments.policies.rows import SYSTEMS
from experiments.policies.runs import Run
from experiments.policies.store import RunStore
from experiments.report import RESULTS, markdown_table

VERDICT = (
    "reproduced in virtual time: attainment far above the baselines' at a small cost in accuracy, and reconfiguration "
    "makes low load faster"
)
PAPER = """## Real-world workload

The paper: "Real-World Workload", its table and the timeline. Run it alone: `python -m experiments.policies --points
trace-20` and, for reconfiguration, `python -m experiments.real_world_trace`.

| the paper | SLO attainment | judge's score | mean latency, s | minutes 0-45 | minutes 45-120 |
| --- | --- | --- | --- | --- | --- |
| DiLaServe, with reconfiguration | 91.13 % | 6.80 | 5.75 | 2.26 | 6.33 |
| Llumnix | 60.98 % | 6.89 | 10.64 | 3.23 | 11.30 |
| INFaaS | 70.03 % | 6.89 | 8.80 | 2.71 | 9.34 |

Accuracy in the steps table replaces the judge's score, because texts are not simulated. Without reconfiguration, means
of seeds 10 to 12 ([all points and policies](../experiments/results/policies.md)):
"""
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


def real_world_section() -> str:
    """The section, with the stored runs of the policies and the report on reconfiguration."""
    found = RESULTS / "real_world_trace.md"
    names = sorted(path.name for path in RESULTS.glob("real_world_trace*.png"))
    pictures = "\n".join(f"![{name}](../experiments/results/{name})\n" for name in names)
    text = (
        found.read_text("utf-8").replace("# ", "### ", 1).replace("\n## ", "\n#### ")
        if found.exists()
        else "Not run yet."
    )
    return f"{PAPER}\n{_policies()}\n\n{text}\n{pictures}"


def _policies() -> str:
    """The stored runs on the trace, as a table; those that are not finished are left out."""
    store, rows = RunStore(RESULTS / "policies.csv"), []
    for row, system in ROWS.items():
        found = [store.get(Run(POINTS[POINT], SYSTEMS[row], seed)) for seed in SEEDS]
        done = [figures for figures in found if figures is not None]
        if len(done) == len(SEEDS):
            columns = ((one.attainment, one.accuracy, one.mean_s, one.p99_s) for one in done)
            rows.append([system, *(f"{fmean(column):.2f}" for column in zip(*columns, strict=True))])
    return markdown_table(["system", "SLO attainment, %", "accuracy, %", "mean latency, s", "P99, s"], rows)
