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
def test_all_cases_in_one_batch_and_some_alone_match_the_reference_traces(name: str, mode: str) -> None:
    cases = threshold_cases((name,), (mode,))
    if cases:  # of each family, the authors' code has some of the modes
        assert_traces(decode_cases(cases, runner_of(directory(name))), cases)
    for case in cases[::4]:
        assert_traces(decode_cases([case], runner_of(directory(name))), [case])


@pytest.mark.parametrize("name", [*SETS, *RELATIVES])
def test_each_set_has_traces_of_several_thresholds(name: str) -> None:
    assert len({case.threshold for case in threshold_cases((name,), tuple(MODES))}) >= 3
