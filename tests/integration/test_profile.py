"""Commands with a real Postgres: `dilaserve profile` and its profiles, `dilaserve simulate --from-database`."""

import asyncio
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from sqlalchemy import insert, select
from sqlalchemy.ext.asyncio import AsyncEngine

from dilaserve import cli
from dilaserve.cli import run
from dilaserve.stack import probes
from services.reconfigurator.monitoring.recent_workload import fill_missing_profiles
from shared.database.profile_store import load_profile, save_profile
from shared.database.schema import MeasuredLatencyRow, ProfileRow, RequestRow, open_database, upgrade
from shared.messages.steps import StepKind
from shared.profile import MIXED, LatencyProfile, MeasuredLatency
from tests.builders import instance, model_card
from tests.support.postgres import PostgresServer
from tests.support.refusal import refusal
from tests.support.workloads import PROFILE

QUICKLY = ("--device", "cpu", "--max-tokens", "64", "--repeats", "1", "--threads", "1")
DETAILED = LatencyProfile.from_rows(
    [
        MeasuredLatency(1, 32, StepKind.RECOMPUTE, 0.02, context_tokens=32),
        MeasuredLatency(1, 32, StepKind.CACHE, 0.01, context_tokens=256),
        MeasuredLatency(1, 32, StepKind.CACHE, 0.02, context_tokens=1024),
        MeasuredLatency(1, 64, MIXED, 0.025, context_tokens=288, recompute_tokens=32),
    ]
)


@pytest.fixture
async def engine(postgres: PostgresServer) -> AsyncIterator[AsyncEngine]:
    engine = open_database(postgres.url)
    yield engine
    await engine.dispose()


def profile(*tps: int, seconds: float) -> LatencyProfile:
    return LatencyProfile.from_rows((tp, 32, kind, seconds / tp) for tp in tps for kind in StepKind)


async def loaded(engine: AsyncEngine, model: str) -> LatencyProfile:
    found = await load_profile(engine, model, "cpu")
    assert found is not None
    return found


async def test_profiles_are_stored_by_model_and_device(engine: AsyncEngine) -> None:
    await save_profile(engine, "demo", "cpu", profile(1, 2, seconds=1.0))
    await save_profile(engine, "demo", "H100", profile(1, seconds=0.1))
    await save_profile(engine, "demo", "cpu", profile(2, seconds=3.0))
    await save_profile(engine, "detailed", "cpu", DETAILED)
    found = await loaded(engine, "demo")
    assert [found.latency_s(tp, 32, StepKind.CACHE) for tp in (1, 2)] == [1.0, 1.5]
    assert (await loaded(engine, "detailed")).rows == DETAILED.rows
    assert await load_profile(engine, "other", "cpu") is None


async def test_the_version_before_finds_each_profile(engine: AsyncEngine) -> None:
    """It uses the rows whose curve has the same time in the table of its own."""
    await save_profile(engine, "going-back", "cpu", DETAILED)
    times = [
        select(table.measured_at).where(table.model == "going-back").distinct()
        for table in (ProfileRow, MeasuredLatencyRow)
    ]
    async with engine.connect() as connection:
        old, new = [(await connection.scalars(query)).all() for query in times]
    assert len(old) == 1
    assert old == new


async def test_the_planner_prefers_given_then_registered_then_stored_profiles(engine: AsyncEngine) -> None:
    brings = profile(1, 2, seconds=2.0).for_tp(2).to_csv()
    instances = [instance(model=model_card(name="kept"), tp_degree=2, profile=brings)]
    await save_profile(engine, "kept", "cpu", profile(1, 2, 4, seconds=8.0))
    found = await fill_missing_profiles(profile(1, seconds=5.0), instances, engine)
    assert [found.latency_s(tp, 32, StepKind.CACHE) for tp in (1, 2, 4)] == [5.0, 1.0, 2.0]


async def test_the_profile_of_an_instance_stays_known_without_it(engine: AsyncEngine) -> None:
    registered = instance(model=model_card(name="ran"), tp_degree=2, profile=profile(2, seconds=2.0).to_csv())
    other = instance(model=model_card(name="ran"), profile=profile(1, seconds=1.0).to_csv())
    await save_profile(engine, "ran", "cpu", profile(1, seconds=9.0))
    first, second, third = [
        await fill_missing_profiles(LatencyProfile(), instances, engine) for instances in ([registered], [other], [])
    ]
    assert [first.latency_s(tp, 32, StepKind.CACHE) for tp in (1, 2)] == [9.0, 1.0]
    assert [second.latency_s(tp, 32, StepKind.CACHE) for tp in (1, 2)] == [1.0, 1.0]
    assert third.tp_degrees == []  # of no model


async def test_the_command_writes_the_profile_to_a_file_and_the_database(
    tiny_checkpoint_dir: Path,
    postgres: PostgresServer,
    engine: AsyncEngine,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "my profile.csv"
    files = ("--model", str(tiny_checkpoint_dir), "--out", str(out))
    assert await asyncio.to_thread(cli.run, ["profile", *files, "--database-url", postgres.url, *QUICKLY]) == 0
    assert f"Next: dilaserve up --model {tiny_checkpoint_dir} --profile '{out}'\n" in capsys.readouterr().out
    kept = await loaded(engine, tiny_checkpoint_dir.name)
    assert kept.to_csv() == out.read_text()
    assert list(kept.curves) == [(1, kind) for kind in StepKind]


def test_without_a_database_the_command_needs_none_of_its_packages(
    tiny_checkpoint_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The image of the workers lacks them."""
    for module in ("dilaserve.stack.database", "shared.database.profile_store"):
        monkeypatch.setitem(sys.modules, module, None)
    out = tmp_path / "profile.csv"
    assert cli.run(["profile", "--model", str(tiny_checkpoint_dir), "--out", str(out), *QUICKLY]) == 0
    assert out.exists()


def test_an_unavailable_database_is_reported_before_measuring(
    tiny_checkpoint_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probes, "ANSWER_TIMEOUT_S", 0.2)
    url = "postgresql://u:secret@127.0.0.1:1/x"
    files = ("--model", tiny_checkpoint_dir, "--out", tmp_path / "profile.csv")
    error = refusal(capsys, "profile", *files, "--database-url", url)
    assert error == "dilaserve: --database-url postgresql://127.0.0.1:1/x: Postgres does not answer\n"


REQUESTS = 40


def row(number: int) -> dict[str, object]:
    """A request of half a minute ago; one second between two."""
    return {
        "request_id": f"r{number}",
        "status": "completed" if number else "failed",
        "arrived_at": datetime.now(UTC) - timedelta(seconds=30 + REQUESTS - number),
        "prompt_tokens": 20,
        "completion_tokens": 50,
        "output_tokens": 128,
        "slo_s": 8.0,
        "latency_s": 2.0,
        "slo_met": True,
        "steps": 20,
        "mean_threshold": 0.9,
        "unmasked_tokens": 64,
        "thresholds": [0.9],
        "threshold_steps": [20],
        "threshold_tokens": [64],
        "instances": ["a"],
        "migrations": 0,
    }


@pytest.fixture
async def database_url(postgres_server: PostgresServer, database: AsyncEngine) -> str:
    await upgrade(database)
    async with database.begin() as connection:
        await connection.execute(insert(RequestRow), [row(number) for number in range(REQUESTS)])
    return postgres_server.url


@pytest.mark.slow
async def test_recorded_requests_run_under_each_policy_and_cluster(
    database_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "profile.csv").write_text(PROFILE.to_csv())
    common = ["simulate", "--from-database", "--database-url", database_url, "--profile", str(tmp_path / "profile.csv")]
    files = ["--report", str(tmp_path / "report.md"), "--plot", str(tmp_path / "plot.png"), "--json"]
    choices = ["--cluster", "1x1", "--cluster", "2x1", "--policy", "dilaserve", "--policy", "fixed"]
    constants = ["--threshold", "0.9", "--threshold", "0.7", "--predictor", "one-shot"]
    assert await asyncio.to_thread(run, [*common, *files, *choices, *constants, "--last", "10m"]) == 0
    result = msgspec.json.decode(capsys.readouterr().out)
    assert [(each["cluster"], each["policy"], each["threshold"]) for each in result["runs"]] == [
        (cluster, policy, threshold)
        for cluster in ("1x1", "2x1")
        for policy, threshold in (("dilaserve", None), ("fixed", 0.9), ("fixed", 0.7))
    ]
    assert {each["requests"] for each in [result["recorded"], *result["runs"]]} == {REQUESTS}
    recorded = result["recorded"]
    assert (recorded["failed"], recorded["mean_threshold"], recorded["latency_s"]["p50"]) == (1, 0.9, 2.0)
    assert (tmp_path / "report.md").read_text().count("\n| ") == 2 + 1 + 6
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")

    assert await asyncio.to_thread(run, [*common, "--last", "1s"]) == 2
    assert "no request that arrived in the last 1 s has ended" in capsys.readouterr().err
    assert await asyncio.to_thread(run, [*common, "--last", "an hour"]) == 2
    assert "a number and s, m, h or d, such as 1h" in capsys.readouterr().err
