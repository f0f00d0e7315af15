"""Training runs of the step predictor: requests, thresholds, recorded steps."""

import json
from pathlib import Path

import numpy as np
import pytest

from dilaserve.prediction.collecting import RecordedRun, collect, num_runs, record, split
from dilaserve.prediction.cost import cost_by_granularity
from dilaserve.prediction.training_runs import Prompt, TrainingRun, changing_runs, fixed_runs, read_prompts
from services.predictor.model import StepPredictor
from services.predictor.training import train
from services.predictor.trajectories import examples
from services.worker.engine.cache_mode import CacheMode
from services.worker.engine.engine import Engine, EngineLimits
from services.worker.model.model_runner import Runner
from shared.errors import BadInput
from shared.text import TextModel
from tests.support.random_model import random_decoder
from tests.support.trajectories import THRESHOLDS as SYNTHETIC_THRESHOLDS
from tests.support.trajectories import fixed_trajectories

THRESHOLDS = (0.1, 0.3, 0.6)


def prompt(seed: int, output_length: int = 32) -> Prompt:
    ids = np.random.default_rng(seed).integers(0, 50, 4 + seed % 3).astype(np.int32)
    return Prompt(ids, output_length, block_length=16)


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine(Runner(random_decoder(), cache_tokens=4096), CacheMode.DUAL, EngineLimits(4096, 64), "test")


def test_every_step_is_recorded_with_threshold_and_tokens(engine: Engine) -> None:
    run = TrainingRun(prompt(1), threshold=0.3, first=(0.6, 0.1))
    [trajectory] = record(engine, [run], lambda: None).trajectories
    assert trajectory.output_length == 32
    assert trajectory.unmasked.min() >= 1
    assert trajectory.thresholds[:3].tolist() == [0.6, 0.1, 0.3]
    assert trajectory.settled_at == 2
    assert (np.diff(trajectory.confidence_stats[:, [0, 1, 2, 4]], axis=1) >= 0).all(), "min, q25, median, q75"


def test_requests_recorded_together_run_as_each_does_alone(engine: Engine) -> None:
    runs = fixed_runs([prompt(seed, 16 * (1 + seed % 3)) for seed in range(12)], THRESHOLDS)
    done: list[int] = []
    together = record(engine, runs, lambda: done.append(1)).trajectories
    assert len(done) == len(runs)
    for run, trajectory in list(zip(runs, together, strict=True))[::11]:
        [alone] = record(engine, [run], lambda: None).trajectories
        np.testing.assert_array_equal(alone.unmasked, trajectory.unmasked)
        np.testing.assert_allclose(alone.confidence_stats, trajectory.confidence_stats, rtol=1e-5)
    assert engine.num_resident == 0


def test_a_state_after_changing_thresholds_continues_at_every_threshold(engine: Engine) -> None:
    runs = changing_runs([prompt(3)], THRESHOLDS, steps=3, random=np.random.default_rng(0))
    assert [run.threshold for run in runs] == list(THRESHOLDS)
    assert len({run.first for run in runs}) == 1
    trajectories = record(engine, runs, lambda: None).trajectories
    reached = len(runs[0].first)
    states = [trajectory.states().features[reached] for trajectory in trajectories]
    for state in states[1:]:
        np.testing.assert_allclose(state, states[0], rtol=1e-5)


def test_collected_examples_cover_every_threshold_at_every_stage(engine: Engine) -> None:
    prompts = [prompt(seed) for seed in range(4)]
    done: list[int] = []
    collected = collect(engine, prompts, THRESHOLDS, 0, lambda: done.append(1))
    assert len(done) == num_runs(prompts, THRESHOLDS)
    for recorded in (collected.fixed, collected.changing):
        training = examples(recorded.trajectories)
        assert {round(float(t), 1) for t in training.rows[:, 0]} == set(THRESHOLDS)
        assert training.masks_left.min() < 16 < training.masks_left.max()


def test_a_request_that_cannot_run_is_reported(engine: Engine) -> None:
    with pytest.raises(BadInput, match="request 1: "):
        record(engine, [TrainingRun(Prompt(np.array([999_999], dtype=np.int32), 16, 16), 0.5)], lambda: None)


@pytest.mark.parametrize(
    ("rows", "requested", "expected"),
    [(600, (100, 50), (100, 50)), (600, (590, 200), (480, 120)), (20, (100, 50), (16, 4))],
)
def test_held_out_prompts_are_not_training_prompts(
    rows: int, requested: tuple[int, int], expected: tuple[int, int]
) -> None:
    prompts = [prompt(seed) for seed in range(rows)]
    training, held_out = split(prompts, *requested)
    assert (len(training), len(held_out)) == expected
    assert not {id(p) for p in training} & {id(p) for p in held_out}


def test_fewer_predictions_cost_less() -> None:
    trajectories = fixed_trajectories(range(10))
    booster = train(trajectories, trajectories, trajectories, SYNTHETIC_THRESHOLDS).booster
    recorded = RecordedRun(trajectories, iterations=sum(t.num_steps for t in trajectories) // 30, seconds=1.0)
    predictor = StepPredictor(booster)
    runs = [cost_by_granularity(predictor, recorded, SYNTHETIC_THRESHOLDS) for _ in range(5)]
    assert min(costs[1] for costs in runs) > min(costs[32] for costs in runs) > 0  # without other programs' share


def test_too_few_prompts_are_rejected() -> None:
    with pytest.raises(BadInput, match="at least"):
        split([prompt(0)], 100, 50)


def test_output_lengths_are_the_rows_or_the_given_ones_in_turn(text: TextModel, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in ({"prompt": "a", "output_tokens": 40}, {"prompt": "b"})))
    assert [p.output_length for p in read_prompts(file, text, 32, [])] == [64, 128]
    assert [p.output_length for p in read_prompts(file, text, 32, [32, 96])] == [32, 96]
    with pytest.raises(BadInput, match="at most 512"):
        read_prompts(file, text, 32, [1024])
