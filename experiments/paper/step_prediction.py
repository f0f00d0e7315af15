"""Serving GSM8K with different estimates of the steps left: one-shot, predictor, oracle."""

from collections.abc import Sequence

from experiments.paper.plots import Panels
from experiments.paper.runs import SimulationRun
from experiments.paper.study import Case, Comparison, Row, Study, main, widest_gain
from simulator.scenario import PredictorName

RATES = (13, 16, 19)
PREDICTORS: dict[str, PredictorName] = {"one-shot": "one-shot", "step predictor": "trained", "oracle": "oracle"}


def cases() -> list[Case]:
    return [
        ({"system": name, "RPS": rps}, SimulationRun(rps=rps, predictor=predictor))
        for name, predictor in PREDICTORS.items()
        for rps in RATES
    ]


def compare(rows: Sequence[Row]) -> list[Comparison]:
    return [
        ("oracle over one-shot, widest gain", "+15 points", widest_gain(rows, "one-shot", "oracle")),
        (
            "predictor over one-shot, widest gain",
            "+11 points, accuracy up to +1.1 %",
            widest_gain(rows, "one-shot", "step predictor"),
        ),
    ]


STUDY = Study(
    name="step_prediction",
    title="Step prediction: serving performance",
    source='"Step Prediction", the figure of serving performance under step prediction strategies, left (LLaDA, GSM8K)',
    cases=cases,
    panels=Panels(x="RPS", y=("SLO attainment, %", "accuracy, %"), line="system"),
    compare=compare,
    remarks=(
        "The step predictor is the live one, LightGBM on the 11 features, trained on 100 simulated requests. The "
        "spread of requests, and how well confidences predict it, are from the simulator's model of denoising, not "
        "LLaDA."
    ),
)

if __name__ == "__main__":
    main(STUDY)
