"""The latency profile that an instance measures, and the spans of the requests that it holds."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import services.worker.profile.stored_profile
from services.worker.model.decoder import PackedDecoder
from services.worker.model.families import parse_config
from services.worker.model.forward_batch import ForwardBatch
from services.worker.model.model_loading import ModelChoice
from services.worker.model.model_runner import Runner, TokenPredictions
from services.worker.monitoring import tracing
from services.worker.profile.profiler import ProfilePlan, batch_sizes, measure
from services.worker.profile.stored_profile import given_profile, stored_profile
from shared.arrays import pack_int32, pack_int64
from shared.errors import BadInput
from shared.messages.steps import RequestState, StepJobs, StepKind, StepResults
from shared.profile import MIXED, LatencyProfile, write_profile
from tests.support.engines import SmallDevice, random_runner
from tests.support.random_model import LLADA, random_decoder
from tests.support.spans import recorded_in

PLAN = ProfilePlan(batch_tokens=(32, 64, 256), repeats=2)
CHOICE = ModelChoice("random", threads=1)


def test_both_kinds_of_step_are_measured_at_each_batch_size() -> None:
    profile = measure(Runner(random_decoder(), cache_tokens=8 * 128), 1, PLAN)
    assert {key: curve.batch_tokens.tolist() for key, curve in profile.curves.items()} == {
        (1, StepKind.RECOMPUTE): [32, 64, 256],
        (1, StepKind.CACHE): [32, 64, 256],
    }
    assert all((curve.latency_s > 0).all() for curve in profile.curves.values())


def rows(profile: LatencyProfile, kind: object) -> list[tuple[int, int, int]]:
    """Tokens fed, keys attended and tokens recomputed."""
    return [(row.batch_tokens, row.context_tokens, row.recompute_tokens) for row in profile.rows if row.kind == kind]


def test_mixed_iterations_are_measured_as_one_forward() -> None:
    runner = Counted(8 * 128)
    plan = replace(PLAN, batch_tokens=(32, 64, 192), mixed_tokens=((32, 128), (64, 128), (64, 256)))
    profile = measure(runner, 1, plan)
    # 256 recomputed tokens were not measured alone.
    assert rows(profile, MIXED) == [(160, 2 * 128, 128), (192, 3 * 128, 128)]
    opening = 1 + 1 + 4  # each iteration has room for one more request
    assert len(runner.fed) == (1 + 2) * (3 + 3 + 2) + opening


def test_cache_steps_are_measured_over_longer_sequences_too() -> None:
    decoder = PackedDecoder(parse_config(LLADA | {"max_sequence_length": 512})).eval()
    profile = measure(Runner(decoder, cache_tokens=8 * 512), 1, replace(PLAN, long_tokens=(64,)))
    assert [row for row in rows(profile, StepKind.CACHE) if row[0] == 64] == [(64, 2 * 256, 0), (64, 2 * 512, 0)]
    assert rows(profile, StepKind.RECOMPUTE) == [(32, 32, 0), (64, 64, 0), (256, 256, 0)]


def test_requests_are_opened_again_before_their_masks_run_out() -> None:
    plan = ProfilePlan((32, 64, 96, 128, 160), repeats=12)
    assert len(rows(measure(Runner(random_decoder(), cache_tokens=8 * 128), 1, plan), StepKind.CACHE)) == 5


def test_cache_steps_that_exceed_the_cache_are_not_measured() -> None:
    profile = measure(Runner(random_decoder(), cache_tokens=2 * 128), 1, PLAN)
    assert profile.curves[1, StepKind.CACHE].batch_tokens.tolist() == [32, 64]
    assert list(measure(Runner(random_decoder()), 1, PLAN).curves) == [(1, StepKind.RECOMPUTE)]


def test_no_larger_batch_follows_a_step_that_takes_too_long() -> None:
    profile = measure(Runner(random_decoder()), 1, ProfilePlan((32, 64), repeats=2, max_step_s=0.0))
    assert profile.curves[1, StepKind.RECOMPUTE].batch_tokens.tolist() == [32]


def test_no_larger_batch_follows_one_that_exceeds_the_memory() -> None:
    runner = SmallDevice(random_decoder(), cache_tokens=8 * 128)
    runner.room = 128
    profile = measure(runner, 1, ProfilePlan((32, 64, 128, 256), repeats=2))
    assert [curve.batch_tokens.tolist() for curve in profile.curves.values()] == [[32, 64, 128]] * 2


def test_filling_the_cache_uses_no_larger_batches_than_are_measured() -> None:
    runner = Counted(8 * 128)
    measure(runner, 1, PLAN)
    assert max(runner.fed) == max(PLAN.batch_tokens)


class Counted(Runner):
    """Keeps the number of tokens of each run."""

    def __init__(self, cache_tokens: int) -> None:
        super().__init__(random_decoder(), cache_tokens)
        self.fed: list[int] = []

    def run(self, batch: ForwardBatch) -> TokenPredictions:
        self.fed.append(len(batch.tokens))
        return super().run(batch)


@pytest.mark.parametrize(("budget_s", "runs"), [(float("inf"), (1 + 3) + (2 + 3)), (0.0, (1 + 1) + (2 + 1))])
def test_steps_are_repeated_until_the_budget_is_spent(budget_s: float, runs: int) -> None:
    runner = Counted(128)
    measure(runner, 1, ProfilePlan((32,), repeats=3, budget_s=budget_s))
    assert len(runner.fed) == runs


def test_batch_sizes_double_up_to_the_maximum() -> None:
    assert batch_sizes(256) == (32, 64, 128, 256)
    assert batch_sizes(300) == (32, 64, 128, 256, 300)
    assert batch_sizes(32) == (32,)


def test_a_measured_profile_is_stored_for_the_next_start(tmp_path: Path) -> None:
    runner = random_runner(0)
    first = stored_profile(CHOICE, runner, tmp_path)
    assert [path.suffix for path in tmp_path.iterdir()] == [".csv"]
    assert stored_profile(CHOICE, runner, tmp_path).to_csv() == first.to_csv()


@pytest.mark.parametrize("changed", ["gpu", "torch", "cuda driver", "code"])
def test_a_profile_measured_otherwise_is_not_used(
    changed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, driver, profiles = tmp_path / "code", tmp_path / "driver", tmp_path / "profiles"
    code.mkdir()
    monkeypatch.setattr(services.worker.profile.stored_profile, "CODE", code)
    monkeypatch.setattr(services.worker.profile.stored_profile, "DRIVER_VERSION", driver)
    for text in ("first", "second", "first"):
        match changed:
            case "gpu":
                monkeypatch.setattr(services.worker.profile.stored_profile, "device_name", lambda _, name=text: name)
            case "torch":
                monkeypatch.setattr(torch, "__version__", text)
            case "cuda driver":
                driver.write_text(f"NVRM version: {text}\nGCC version\n")
            case "code":
                (code / "kernel.py").write_text(f"version = '{text}'\n")
        stored_profile(CHOICE, random_runner(0), profiles)
    assert len(list(profiles.iterdir())) == 2


def test_a_given_profile_without_this_tp_degree_is_rejected(tmp_path: Path) -> None:
    write_profile(tmp_path / "p.csv", LatencyProfile.from_rows([(2, 32, StepKind.RECOMPUTE, 0.1)]))
    with pytest.raises(BadInput, match="tp 1"):
        given_profile(tmp_path / "p.csv", 1)
    assert given_profile(tmp_path / "p.csv", 2).tp_degrees == [2]


TRACE = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    return recorded_in(tracing, monkeypatch)


def jobs(*tickets: int, epoch: int = 1, name: str = "r", **options: object) -> StepJobs:
    states = [
        RequestState(ticket=t, request_id=f"{name}{t}", prompt_length=1, block_length=1, canvas=b"", trace=TRACE)
        for t in tickets
    ]
    return StepJobs(epoch=epoch, states=states, **options)  # type: ignore[arg-type]


def ended_spans(exporter: InMemorySpanExporter) -> list[tuple[object, object]]:
    """The request id and the number of steps of each ended span."""
    names = ("dilaserve.request_id", "dilaserve.steps")
    attributes = [span.attributes or {} for span in exporter.get_finished_spans()]
    return [(of_span[names[0]], of_span[names[1]]) for of_span in attributes]


def step_of(ticket: int) -> StepResults:
    one = pack_int32([1])
    return StepResults(instance_id="a-1", epoch=1, tickets=pack_int64([ticket]), steps=one, counts=one)


def test_a_span_ends_when_its_request_is_dropped(ended: InMemorySpanExporter) -> None:
    spans = tracing.DenoiseSpans("a-1")
    spans.jobs_received(jobs(1, 2, 3))
    spans.iteration_finished(step_of(1))
    spans.jobs_received(jobs(drops=pack_int64([1])))
    assert ended_spans(ended) == [("r1", 1)]
    spans.jobs_received(jobs(3, forget_below=9))
    assert ended_spans(ended) == [("r1", 1), ("r2", 0)]


def test_the_same_ticket_in_a_new_epoch_has_its_own_span(ended: InMemorySpanExporter) -> None:
    spans = tracing.DenoiseSpans("a-1")
    spans.jobs_received(jobs(1))
    spans.jobs_received(jobs(1, epoch=2, name="s"))
    spans.iteration_finished(step_of(1))
    spans.close()
    assert ended_spans(ended) == [("r1", 0), ("s1", 1)]
