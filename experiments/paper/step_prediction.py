"""What predicting the steps left is worth: GSM8K served with the one-shot estimate, the predictor, an oracle."""

from collections.abc import Sequence

from experiments.paper.plots import Panels
from experiments.paper.runs import SimulationRun
from experiments.paper.study import Case, Comparison, Row, Study, main, simulated, told
from simulator.scenario import PredictorName

RATES = (13, 16, 19)
PREDICTORS: dict[str, PredictorName] = {"one-shot": "one-shot", "step predictor": "trained", "oracle": "oracle"}


def measure(quick: bool) -> list[Row]:
    cases: list[Case] = [
        ({"system": name, "RPS": rps}, SimulationRun(rps=rps, predictor=predictor))
        for name, predictor in PREDICTORS.items()
        for rps in RATES
    ]
    return simulated(cases, quick=quick)


def compare(rows: Sequence[Row]) -> list[Comparison]:
    return [
        Comparison("oracle over one-shot, widest gain", "+15 points", told(rows, "one-shot", "oracle")),
        Comparison(
            "predictor over one-shot, widest gain",
            "+11 points, accuracy up to +1.1 %",
            told(rows, "one-shot", "step predictor"),
        ),
    ]


STUDY = Study(
    name="step_prediction",
    title="Step prediction: serving performance",
    source='"Step Prediction", the figure of serving performance under step prediction strategies, left (LLaDA, GSM8K)',
    measure=measure,
    panels=Panels(x="RPS", y=("SLO attainment, %", "accuracy, %"), line="system"),
    compare=compare,
    remarks=(
        "The step predictor is the live one, LightGBM on the 11 features, trained on 100 simulated requests. How much "
        "requests differ, and how well confidences tell it, is the simulator's model of denoising, not LLaDA."
    ),
)

if __name__ == "__main__":
    main(STUDY)
