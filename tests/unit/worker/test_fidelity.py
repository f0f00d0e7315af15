"""Decoding reproduces the traces of the published reference implementations, one by one and batched."""

from functools import cache
from pathlib import Path

import pytest
import torch

from services.worker.model.model_runner import Runner
from services.worker.model.weights import load
from tests.support.engines import MODES, assert_traces, decode_cases
from tests.support.golden import RELATIVES, SETS, directory, threshold_cases


@cache
def runner_of(model: Path) -> Runner:
    return Runner(load(model, torch.float32, "cpu"), cache_tokens=4096)


@pytest.mark.parametrize("name", [*SETS, *RELATIVES])
@pytest.mark.parametrize("mode", MODES)
def test_each_case_alone_matches_the_reference_trace(name: str, mode: str) -> None:
    for case in threshold_cases((name,), (mode,)):
        assert_traces(decode_cases([case], runner_of(case.model)), [case])


@pytest.mark.parametrize("name", [*SETS, *RELATIVES])
@pytest.mark.parametrize("mode", MODES)
def test_all_cases_in_one_batch_match_the_reference_traces(name: str, mode: str) -> None:
    cases = threshold_cases((name,), (mode,))
    if cases:  # of each family, the authors' code has some of the modes
        assert_traces(decode_cases(cases, runner_of(directory(name))), cases)


@pytest.mark.parametrize("name", [*SETS, *RELATIVES])
def test_each_set_has_traces_of_several_thresholds(name: str) -> None:
    assert len({case.threshold for case in threshold_cases((name,), tuple(MODES))}) >= 3
