"""The gateway's connection to the bus, which may be unavailable at the start and at any time after."""

from collections.abc import Mapping

from shared.bus.client import Bus
from shared.bus.subjects import Subjects
from shared.bus.watch import BusWatch
from shared.errors import RetryLater
from shared.service import connect_to_bus
from shared.settings import ServiceSettings

PROBE_S = 2.0  # interval, and time limit, of looks at the bus's storage


class BusConnection:
    """Holds the bus once it is connected."""

    def __init__(self) -> None:
        self._bus: Bus | None = None
        self._watch: BusWatch | None = None

    async def connect(self, settings: ServiceSettings) -> Bus:
        """Wait without a limit for the bus; it reconnects by itself after a loss."""
        bus = await connect_to_bus("gateway", settings)
        self._watch = BusWatch(bus, limited_streams(bus.subjects), PROBE_S)
        try:
            await self._watch.look()  # sets the clock
        finally:
            self._bus = bus  # also if this is cancelled, so that `close` ends the connection
        return bus

    @property
    def is_connected(self) -> bool:
        return self._bus is not None and self._bus.nc.is_connected

    @property
    def is_closed(self) -> bool:
        """Whether the connection has ended for good."""
        return self._bus is not None and self._bus.closed.is_set()

    @property
    def bus(self) -> Bus:
        """Raises: RetryLater while there is no connection."""
        if self._bus is None or not self.is_connected:
            raise RetryLater("the bus is not connected")
        return self._bus

    @property
    def watch(self) -> BusWatch:
        """Looks at the streams that can be full; its clock is that of all gateways. Raises: RetryLater before the first
        connection."""
        if self._watch is None:
            raise RetryLater("the bus is not connected")
        return self._watch

    async def close(self) -> None:
        """Send pending messages if the bus is available, then disconnect."""
        if self._bus is not None:
            await self._bus.close()


def limited_streams(subjects: Subjects) -> Mapping[str, str]:
    """The streams and buckets that refuse messages when they are full: names of the streams, and their kinds."""
    kinds = {subjects.stream(kind): kind for kind in ("REQUESTS", "OUTCOMES", "BATCHES")}
    kinds |= {f"KV_{subjects.claims_bucket}": "claims", f"KV_{subjects.conversations_bucket}": "conversations"}
    return {**kinds, f"OBJ_{subjects.files_store}": "files"}
