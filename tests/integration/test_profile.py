"""`dilaserve profile`, and profiles stored in a real Postgres."""

import asyncio
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import delete, insert
from sqlalchemy.ext.asyncio import AsyncEngine

from dilaserve import cli
from dilaserve.stack import probes
from services.reconfigurator.monitoring.recent_workload import fill_missing_profiles
from shared.database.profile_store import load_profile, save_profile
from shared.database.schema import ProfileRow, open_database
from shared.messages.steps import StepKind
from shared.profile import MIXED, LatencyProfile, MeasuredLatency
from tests.builders import instance, model_card
from tests.support.postgres import PostgresServer
from tests.support.refusal import refusal

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


async def test_a_profile_stored_by_an_earlier_version_is_used(engine: AsyncEngine) -> None:
    """It writes only the table that it knows, also over a profile of this version."""
    await save_profile(engine, "earlier", "cpu", DETAILED)
    columns = {"step_kind": "recompute", "batch_tokens": 32, "latency_s": 0.5, "measured_at": datetime.now(UTC)}
    async with engine.begin() as connection:
        await connection.execute(delete(ProfileRow).where(ProfileRow.model == "earlier"))
        for model in ("earlier", "only-earlier"):
            await connection.execute(insert(ProfileRow).values(model=model, device="cpu", tp=1, **columns))
    for model in ("earlier", "only-earlier"):
        assert (await loaded(engine, model)).rows == [MeasuredLatency(1, 32, StepKind.RECOMPUTE, 0.5)]


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
