"""The report's section on the real-world trace: the paper's table, and what `experiments.real_world_trace` found."""

from experiments.paper.files import ROOT

RESULTS = ROOT / "experiments" / "results"
PAPER = """## Real-world workload

The paper: "Real-World Workload", its table and the timeline. By itself: `python -m experiments.real_world_trace`.

| the paper | SLO attainment | judge's score | mean latency, s | minutes 0-45 | minutes 45-120 |
| --- | --- | --- | --- | --- | --- |
| DiLaServe, with reconfiguration | 91.13 % | 6.80 | 5.75 | 2.26 | 6.33 |
| Llumnix | 60.98 % | 6.89 | 10.64 | 3.23 | 11.30 |
| INFaaS | 70.03 % | 6.89 | 8.80 | 2.71 | 9.34 |

In place of the judge's score stands accuracy by the steps table: texts are not simulated.
"""


def real_world_section() -> str:
    """What was found is taken from the file that the experiment wrote."""
    found = RESULTS / "real_world_trace.md"
    if not found.exists():
        return f"{PAPER}\nNot run yet.\n"
    names = sorted(path.name for path in RESULTS.glob("real_world_trace*.png"))
    pictures = "\n".join(f"![{name}](../experiments/results/{name})\n" for name in names)
    text = found.read_text("utf-8").replace("# ", "### ", 1).replace("\n## ", "\n#### ")
    return f"{PAPER}\n{text}\n{pictures}"
