"""The introduction's figures that need no GPU: accuracy over steps, with the demo model, and two clusters of 8 GPUs."""

from collections.abc import Sequence
from statistics import mean

import numpy as np

from dilaserve.quality.answers import states_answer
from dilaserve.stack.up_options import DEMO_MODEL
from experiments.held_out import held_out, read_prompts
from experiments.paper.plots import Panels
from experiments.paper.runs import SimulationRun, figures, shortened
from experiments.paper.study import Comparison, Study, main
from experiments.paper.tables import Row, number, pick
from services.worker.engine.cache_mode import CacheMode
from services.worker.engine.engine import Engine, EngineLimits
from services.worker.engine.offline_decoder import CaseRequest, Decode, run_iterations
from services.worker.model.model_loading import CacheSize, ModelChoice, open_runner
from services.worker.model.model_runner import ModelRunner
from shared.text import TextModel

FIXED, MIXED, CLUSTERS = "one threshold", "0.9 and 0.6 mixed", "8 GPUs"
THRESHOLDS = (0.5, 0.6, 0.7, 0.8, 0.9)
HIGH, LOW = 0.9, 0.6
LOW_SHARES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)  # of the steps
PROBLEMS, QUICK_PROBLEMS = 500, 1
BATCH, BLOCK_LENGTH, OUTPUT_LENGTH = 64, 32, 64
RATES = (1, 2, 3, 4, 5, 6)
HIGH_TP, LOW_TP = "2x4", "8x1"


def measure(quick: bool) -> list[Row]:
    problems = QUICK_PROBLEMS if quick else PROBLEMS
    thresholds, shares = (THRESHOLDS[::2], LOW_SHARES[::5]) if quick else (THRESHOLDS, LOW_SHARES)
    rows = [_answers(FIXED, "one threshold", threshold, 0.0, problems) for threshold in thresholds]
    rows += [_answers(MIXED, f"share of steps at {LOW}", HIGH, share, problems) for share in shares]
    for cluster in (HIGH_TP, LOW_TP):
        for rps in RATES:
            run = SimulationRun(system="INFaaS", cluster=cluster, rps=rps)
            found = figures(shortened(run) if quick else run)
            rows.append({"figure": CLUSTERS, "line": cluster, "setting": rps, "x": rps, "y": found["mean latency, s"]})
    return rows


def _answers(figure: str, line: str, threshold: float, low_share: float, problems: int) -> Row:
    """Exact match and mean steps of the demo model. A share of each request's steps, picked at random, use LOW."""
    steps, exact = _decode_all(threshold, low_share, problems)
    setting = low_share if figure == MIXED else threshold
    print(f"{figure}, {setting:g}: {steps:.1f} steps, exact match {exact:.1f} %", flush=True)
    return {"figure": figure, "line": line, "setting": setting, "x": steps, "y": exact}


def _decode_all(threshold: float, low_share: float, problems: int) -> tuple[float, float]:
    """Mean steps, and exact match in percent."""
    answers = [str(row.answer) for row in held_out(DEMO_MODEL)][:problems]
    requests = [CaseRequest(str(i), prompt) for i, prompt in enumerate(read_prompts(DEMO_MODEL, problems))]
    text, random = TextModel(DEMO_MODEL, DEMO_MODEL.name), np.random.default_rng(0)
    done: list[Decode] = []
    with open_runner(ModelChoice(str(DEMO_MODEL)), CacheSize(BATCH)) as runner:
        for at in range(0, len(requests), BATCH):
            done += _decode(requests[at : at + BATCH], runner, threshold, low_share, random)
    right = [states_answer(text.decode(one.output.tolist()), answer) for one, answer in zip(done, answers, strict=True)]
    return mean(len(one.steps) for one in done), 100 * mean(right)


def _decode(
    requests: Sequence[CaseRequest],
    runner: ModelRunner,
    threshold: float,
    low_share: float,
    random: np.random.Generator,
) -> list[Decode]:
    fed = sum(len(request.prompt_ids) + OUTPUT_LENGTH for request in requests)
    engine = Engine(runner, CacheMode.DUAL, EngineLimits(tokens=fed, requests=len(requests)), "introduction")
    eos = runner.config.eos_token_id
    decodes = [
        Decode(
            request,
            OUTPUT_LENGTH,
            BLOCK_LENGTH,
            lambda _: LOW if random.random() < low_share else threshold,
            eos_token_id=eos,
        )
        for request in requests
    ]
    for _ in run_iterations(engine, decodes):
        pass
    return decodes


def compare(rows: Sequence[Row]) -> list[Comparison]:
    fixed, clusters = pick(rows, figure=FIXED), pick(rows, figure=CLUSTERS)
    low, high = (next(row for row in fixed if row["setting"] == threshold) for threshold in (0.7, 0.9))
    fewer = 100 * (1 - number(low, "x") / number(high, "x"))
    worst = pick(rows, figure=MIXED)[-1]
    saved = 100 * (1 - number(worst, "x") / number(high, "x"))
    high_tp, low_tp = (pick(clusters, line=cluster) for cluster in (HIGH_TP, LOW_TP))
    shares = [100 * (1 - number(a, "y") / number(b, "y")) for a, b in zip(high_tp, low_tp, strict=True)]
    return [
        ("steps saved from 0.9 to 0.7", "38 %", f"{fewer:.0f} %"),
        ("the same, accuracy", "-1.5 %", f"{number(low, 'y') - number(high, 'y'):+.1f} points"),
        (
            f"all steps at {LOW} against none: steps, accuracy",
            "both fall with the share (no figure given)",
            f"{saved:.0f} % saved, {number(worst, 'y') - number(high, 'y'):+.1f} points",
        ),
        ("2 TP-4 against 8 TP-1 at low load, latency", "up to 43 % lower", f"{max(shares):.0f} % lower"),
        (
            f"the same at {RATES[-1]} RPS",
            "many times higher (no figure given)",
            f"{number(high_tp[-1], 'y') / number(low_tp[-1], 'y'):.1f} times",
        ),
    ]


STUDY = Study(
    name="introduction",
    title="The introduction's figures",
    source="the figures of the trade-off between accuracy and steps, and of 2 TP-4 against 8 TP-1",
    measure=measure,
    panels=Panels(
        x="x",
        y=("y",),
        line="line",
        facet="figure",
        labels={
            FIXED: ("mean steps", "exact match, %"),
            MIXED: ("mean steps", "exact match, %"),
            CLUSTERS: ("RPS", "mean latency, s"),
        },
    ),
    compare=compare,
    verdict=(
        "fewer steps and the two clusters are reproduced; the demo model loses more accuracy by them than the paper's "
        "LLaDA"
    ),
    remarks=(
        f"Accuracy over steps is the exact match of the demo model on {PROBLEMS} held-out problems, with a dual "
        "cache; the paper has LLaDA on GSM8K. The clusters are simulated, with GSM8K and a constant 0.9. The "
        "comparison with an autoregressive model and the latency by TP degree need GPUs; the latter is an input of "
        "the simulation."
    ),
)

if __name__ == "__main__":
    main(STUDY)
