"""The error of the predicted steps left, by the features used and by the tokens between two predictions."""

from collections.abc import Mapping, Sequence

import numpy as np

from experiments.paper.files import STEPS
from experiments.paper.plots import Panels
from experiments.paper.study import Comparison, Study, main
from experiments.paper.tables import Row, number, pick
from services.predictor.training import TrainingReport, train
from simulator.predictor_training import run_under_each
from simulator.steps_table import read_steps
from simulator.unmasking_model import UnmaskingTables

REQUESTS = 100  # to learn from, and as many held out; the paper's training set has the same number
THRESHOLDS = np.array([0.5, 0.6, 0.7, 0.8, 0.9])
OUTPUT_TOKENS = np.array([256])  # GSM8K's
SHOWN = ("one-shot", "progress features", "all features")
BY_KIND, BY_TOKENS = "by estimate", "by tokens between two predictions"


def measure(quick: bool) -> list[Row]:
    requests = REQUESTS // 10 if quick else REQUESTS
    report = _train(requests)
    kinds: list[Row] = [
        {"figure": BY_KIND, "estimate": name, "thresholds": thresholds, "error, %": 100 * error}
        for thresholds, errors in (("fixed", report.fixed), ("changing", report.changing))
        for name, error in errors.items()
        if name in SHOWN
    ]
    return kinds + [
        {"figure": BY_TOKENS, "estimate": str(tokens), "thresholds": "both", "error, %": 100 * error}
        for tokens, error in report.by_granularity.items()
    ]


def _train(requests: int) -> TrainingReport:
    denoising = UnmaskingTables(read_steps(STEPS))
    learnt, judged = np.random.default_rng(0).spawn(2)
    fixed, changing = run_under_each(denoising, OUTPUT_TOKENS, THRESHOLDS, requests, learnt)
    held_out = run_under_each(denoising, OUTPUT_TOKENS, THRESHOLDS, requests, judged)
    return train(fixed + changing, *held_out, THRESHOLDS.tolist()).report


def compare(rows: Sequence[Row]) -> list[Comparison]:
    one_shot, progress, everything = ({t: _error(rows, name, t) for t in ("fixed", "changing")} for name in SHOWN)
    by_tokens = {int(row["estimate"]): number(row, "error, %") for row in pick(rows, figure=BY_TOKENS)}
    chosen = max(tokens for tokens, error in by_tokens.items() if error <= 1.05 * by_tokens[1])
    both = "{:.1f} % (fixed), {:.1f} % (changing thresholds)".format
    return [
        ("one-shot error", "up to 75 %", both(*one_shot.values())),
        ("reduction by progress features", "34.9 %", both(*_reduction(one_shot, progress))),
        ("further reduction by confidence features", "15.8 %", both(*_reduction(progress, everything))),
        ("largest granularity within 5 % of the error at 1", "several tokens (no figure given)", f"{chosen} tokens"),
    ]


def _error(rows: Sequence[Row], name: str, thresholds: str) -> float:
    return number(pick(rows, figure=BY_KIND, estimate=name, thresholds=thresholds)[0], "error, %")


def _reduction(worse: Mapping[str, float], better: Mapping[str, float]) -> list[float]:
    return [100 * (1 - better[thresholds] / worse[thresholds]) for thresholds in worse]


STUDY = Study(
    name="prediction_error",
    title="Step prediction: error and granularity",
    source='"Step Prediction", the figures of prediction error (right) and of prediction granularity',
    measure=measure,
    panels=Panels(x="estimate", y=("error, %",), line="thresholds", facet="figure"),
    compare=compare,
    verdict=(
        "reproduced in virtual time: the error falls by progress and again by confidences, by more and by less than in "
        "the paper"
    ),
    remarks=(
        "Mean relative error of the steps left over the steps of 100 simulated requests outside the training set. "
        "The cost of predictions (in the paper 20 % of a step, per token and on the hot path) and the errors with a "
        "real model are measured with the demo model: "
        "[predictor_accuracy.md](../experiments/results/predictor_accuracy.md). The confidences are those of the "
        "unmasked tokens and of the current block's masks. With those of all output positions, as in the paper, the "
        "errors are 3 to 10 % larger: [predictor_positions.md](../experiments/results/predictor_positions.md)."
    ),
)

if __name__ == "__main__":
    main(STUDY)
