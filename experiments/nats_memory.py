"""The memory of NATS by the number of requests whose messages it has stored. It grows until each stream's file is full.

python -m experiments.nats_memory
"""

import asyncio
import tempfile
from itertools import pairwise
from pathlib import Path

import psutil
import typer

from experiments.report import RESULTS, Report
from shared.bus.client import Bus
from shared.bus.subjects import Subjects
from tests.support.nats import NatsServer

MESSAGE_BYTES = 1000  # of each message
COUNTS = (0, 2000, 4000, 8000, 16000, 32000, 64000)
PARALLEL = 100


async def measure(directory: Path) -> list[tuple[int, int, int]]:
    """The number of requests, the bytes stored, and NATS's private bytes."""
    server = NatsServer(directory)
    server.start()
    try:
        bus = await Bus.connect(server.url, "memory", name="experiment")
        await bus.set_up()
        [process] = [child for child in psutil.Process().children() if child.name() == "nats-server"]
        found = []
        for before, count in pairwise((0, *COUNTS)):
            for first in range(before, count, PARALLEL):
                subjects = [subject for i in range(PARALLEL) for subject in subjects_of(bus.subjects, f"r{first + i}")]
                await asyncio.gather(*(bus.js.publish(subject, bytes(MESSAGE_BYTES)) for subject in subjects))
            stored = sum([info.state.bytes for info in await bus.js.streams_info()])
            found.append((count, stored, process.memory_full_info().uss))
        await bus.close()
    finally:
        server.stop()
    return found


def subjects_of(subjects: Subjects, request_id: str) -> list[str]:
    """Where messages on a request are stored for an hour or a day."""
    claim = f"$KV.{subjects.claims_bucket}.{request_id}"
    return [subjects.arrivals, subjects.outcomes(request_id), subjects.checkpoints(request_id), claim]


def main() -> None:
    """Print the table, and write it to experiments/results/nats_memory.md."""
    note = f"""Four messages of {MESSAGE_BYTES} bytes for each request, in four streams. NATS keeps the file that it
writes of each stream, of up to 8 MB, in memory, and an index of the subjects, here three for each request."""
    report = Report("NATS's memory", note)
    report.add_columns("requests", "stored, MB", "memory, MB")
    with tempfile.TemporaryDirectory() as directory:
        for count, stored, used in asyncio.run(measure(Path(directory))):
            report.add_row(f"{count:,}", f"{stored / 1e6:.1f}", f"{used / 1e6:.0f}")
    report.write(RESULTS / "nats_memory.md")


if __name__ == "__main__":
    typer.run(main)
