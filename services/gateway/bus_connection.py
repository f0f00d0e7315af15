"""The gateway's connection to the bus, which may be away when the gateway starts and at any time after."""

from shared.bus.client import Bus
from shared.errors import RetryLater


class BusConnection:
    """Gives the bus, or says that it is away."""

    def __init__(self) -> None:
        self._bus: Bus | None = None

    async def connect(self, url: str, cell: str, alive_file: str = "") -> Bus:
        """Wait for the bus for as long as it takes; later losses mend themselves."""
        self._bus = await Bus.connect(url, cell, name="gateway", alive_file=alive_file)
        return self._bus

    @property
    def bus(self) -> Bus:
        """Raises: RetryLater while there is no connection."""
        if self._bus is None or not self._bus.nc.is_connected:
            raise RetryLater("the bus is not connected")
        return self._bus

    async def close(self) -> None:
        """Disconnect, sending what is under way if the bus is there."""
        if self._bus is not None:
            await self._bus.close()
