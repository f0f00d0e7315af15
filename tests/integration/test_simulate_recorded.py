"""`dilaserve simulate --from-database`: recorded requests under other policies and clusters."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncEngine

from dilaserve.cli import run
from shared.database.schema import RequestRow, upgrade
from tests.support.postgres import PostgresServer
from tests.support.workloads import PROFILE

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
