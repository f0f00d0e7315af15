"""The model and its card: possible answers, the same in any batch; invalid directories and queries are refused."""

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps

from services.predictor.model import StepPredictor, load_predictor, possible_steps
from services.predictor.queries import Query, read_query
from shared.arrays import pack_float32, pack_int32
from shared.errors import BadInput
from shared.messages.predict import PredictSteps
from shared.predictor_card import CARD_FILE, MODEL_FILE, PredictorCard, read_predictor_card, write_predictor_card
from tests.support.trajectories import THRESHOLDS, random_trajectory, write_predictor


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_predictor(tmp_path_factory.mktemp("predictor"))


@pytest.fixture
def predictor(directory: Path) -> StepPredictor:
    return load_predictor(directory)[0]


def query(seed: int, thresholds: tuple[float, ...] = THRESHOLDS) -> Query:
    return replace(random_trajectory(seed, (), 0.7).states(), thresholds=np.array(thresholds, dtype=np.float32))


@given(
    left=st.lists(
        st.integers(0, 300).flatmap(lambda masks: st.tuples(st.just(masks), st.integers(0, masks))), min_size=1
    ),
    data=st.data(),
)
def test_answers_are_within_the_possible_steps(left: list[tuple[int, int]], data: st.DataObject) -> None:
    masks_left, blocks_left = np.array(left, dtype=np.int32).T
    ratios = data.draw(nps.arrays(np.float64, (len(left), 3), elements=st.floats(-10, 10)))
    query = Query(np.zeros((len(left), 10), np.float32), np.zeros(3, np.float32), masks_left, blocks_left)
    steps = possible_steps(ratios, query)
    assert (steps <= masks_left[:, None]).all()
    assert (steps >= blocks_left[:, None]).all()
    assert ((steps >= 1) | (masks_left[:, None] == 0)).all()


def test_batched_queries_get_the_same_answers_as_single_ones(predictor: StepPredictor) -> None:
    none = Query(np.empty((0, 10), np.float32), np.ones(2, np.float32), np.empty(0, np.int32), np.empty(0, np.int32))
    queries = [query(1), query(2, (0.9,)), none, query(3, ()), query(4)]
    together = predictor.steps_left(queries)
    assert [a.shape for a in together] == [(len(q.features), len(q.thresholds)) for q in queries]
    for single, answer in zip(queries, together, strict=True):
        np.testing.assert_array_equal(predictor.steps_left([single])[0], answer)


def test_a_higher_threshold_never_takes_fewer_steps(predictor: StepPredictor) -> None:
    [steps] = predictor.steps_left([query(5, tuple(np.linspace(0.4, 1, 20)))])
    assert (np.diff(steps, axis=1) >= 0).all()


@pytest.mark.parametrize(
    ("file", "content", "error"),
    [
        (CARD_FILE, '{"version": "x"}', "missing"),
        (CARD_FILE, None, "No such file"),
        (MODEL_FILE, "tree\nnonsense", "not the model"),
        (MODEL_FILE, None, "No such file"),
    ],
)
def test_a_directory_that_holds_no_predictor_is_rejected(
    directory: Path, tmp_path: Path, file: str, content: str | None, error: str
) -> None:
    for name in (CARD_FILE, MODEL_FILE):
        (tmp_path / name).write_bytes((directory / name).read_bytes())
    (tmp_path / file).unlink()
    if content is not None:
        (tmp_path / file).write_text(content)
    with pytest.raises(BadInput, match=error):
        load_predictor(tmp_path)


def test_a_predictor_of_other_features_is_rejected(directory: Path, tmp_path: Path) -> None:
    (tmp_path / CARD_FILE).write_text((directory / CARD_FILE).read_text().replace("block_progress", "mood"))
    with pytest.raises(BadInput, match="mood"):
        load_predictor(tmp_path)


GOOD = PredictSteps(
    features=pack_float32(np.zeros((2, 10))),
    thresholds=pack_float32([0.5, 0.7, 0.9]),
    masks_left=pack_int32([64, 1]),
    blocks_left=pack_int32([2, 1]),
)


def test_a_query_has_one_row_per_request() -> None:
    query = read_query(GOOD)
    assert query.features.shape == (2, 10)
    assert query.masks_left.tolist() == [64, 1]


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"features": b"12345"}, "multiple"),
        ({"features": pack_float32(np.zeros(19))}, "reshape"),
        ({"features": pack_float32(np.full((2, 10), np.nan))}, "finite"),
        ({"thresholds": pack_float32([np.inf])}, "finite"),
        ({"thresholds": pack_float32(np.zeros(100_001))}, "at most"),
        ({"masks_left": pack_int32([64])}, "different lengths"),
        ({"blocks_left": pack_int32([2, 2])}, "blocks_left"),
        ({"blocks_left": pack_int32([2, -1])}, "blocks_left"),
    ],
)
def test_inconsistent_columns_are_rejected(wrong: dict[str, bytes], error: str) -> None:
    with pytest.raises(BadInput, match=error):
        read_query(msgspec.structs.replace(GOOD, **wrong))


CARD = PredictorCard(
    version="abc", features=["a"], thresholds=[0.5, 0.9], tokens_per_step=[4.0, 2.0], update_granularity=8
)


def test_tokens_per_step_are_interpolated_and_constant_beyond_the_thresholds() -> None:
    means = CARD.mean_tokens_per_step(np.array([0.1, 0.5, 0.7, 0.9, 1.0]))
    np.testing.assert_allclose(means, [4, 4, 3, 2, 2])


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"tokens_per_step": [4.0]}, "equal length"),
        ({"thresholds": [0.9, 0.5]}, "must ascend"),
        ({"update_granularity": 0}, "at least 1"),
        ({"tokens_per_step": [0.0, 2.0]}, "at least 1"),
        ({"version": 7}, "Expected"),
    ],
)
def test_an_invalid_card_is_rejected_in_one_line(tmp_path: Path, wrong: dict[str, object], error: str) -> None:
    write_predictor_card(tmp_path, CARD)
    path = tmp_path / CARD_FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | wrong))
    with pytest.raises(BadInput, match=error):
        read_predictor_card(tmp_path)
