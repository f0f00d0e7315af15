"""The memory of NATS by the number of outcomes that it has stored: it grows until a file of the stream is full.

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
from tests.support.nats import NatsServer

OUTCOME_BYTES = 1000  # of a request with 64 tokens of output
COUNTS = (0, 2000, 4000, 8000, 16000, 32000, 64000)
PARALLEL = 100


async def measure(directory: Path) -> list[tuple[int, int, int]]:
    """The number of outcomes, their bytes, and NATS's private bytes."""
    server = NatsServer(directory)
    server.start()
    try:
        bus = await Bus.connect(server.url, "memory", name="experiment")
        await bus.set_up()
        [process] = [child for child in psutil.Process().children() if child.name() == "nats-server"]
        stream, found = bus.subjects.stream("OUTCOMES"), []
        for before, count in pairwise((0, *COUNTS)):
            for first in range(before, count, PARALLEL):
                subjects = [bus.subjects.outcomes(f"r{first + i}") for i in range(PARALLEL)]
                await asyncio.gather(*(bus.js.publish(subject, bytes(OUTCOME_BYTES)) for subject in subjects))
            used = process.memory_full_info().uss
            found.append((count, (await bus.js.stream_info(stream)).state.bytes, used))
        await bus.close()
    finally:
        server.stop()
    return found


def main() -> None:
    """Print the table, and write it to experiments/results/nats_memory.md."""
    note = f"""One stream, outcomes of {OUTCOME_BYTES} bytes. NATS keeps the file that it writes, of up to 8 MB,
in memory, and an index of the subjects, here one for each outcome."""
    report = Report("NATS's memory", note)
    report.add_columns("outcomes", "stored, MB", "memory, MB")
    with tempfile.TemporaryDirectory() as directory:
        for count, stored, used in asyncio.run(measure(Path(directory))):
            report.add_row(f"{count:,}", f"{stored / 1e6:.1f}", f"{used / 1e6:.0f}")
    report.write(RESULTS / "nats_memory.md")


if __name__ == "__main__":
    typer.run(main)
