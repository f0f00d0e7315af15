"""What the routes need, put together once."""

from dataclasses import dataclass

from services.gateway.batches import Batches
from services.gateway.calls import Calls
from services.gateway.claims import Claims
from services.gateway.files import Files
from services.gateway.gate import Gate
from services.gateway.link import Link
from services.gateway.metrics import Metrics
from services.gateway.readiness import Readiness
from services.gateway.watch import Watch
from shared.text import TextModel


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of one gateway. `started_s` is Unix time in seconds."""

    text: TextModel
    link: Link
    gate: Gate
    claims: Claims
    files: Files
    batches: Batches
    readiness: Readiness
    calls: Calls
    metrics: Metrics
    watch: Watch
    started_s: float
