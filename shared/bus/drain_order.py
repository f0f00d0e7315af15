"""The order to drain a cell: its requests end, and gateways send no more to it. It is kept on the bus."""

from nats.js.errors import KeyNotFoundError

from shared.bus.client import Bus
from shared.bus.errors import bus_errors

KEY = "cell"


async def is_drain_ordered(bus: Bus) -> bool:
    """Raises: RetryLater if the bus does not answer, or the cell was never set up."""
    with bus_errors("read the order to drain"):
        bucket = await bus.js.key_value(bus.subjects.drain_bucket)
        try:
            await bucket.get(KEY)
        except KeyNotFoundError:
            return False
    return True


async def order_drain(bus: Bus, *, drains: bool) -> None:
    """Give the order, or withdraw it. Raises: RetryLater as `is_drain_ordered`."""
    with bus_errors("store the order to drain"):
        bucket = await bus.js.key_value(bus.subjects.drain_bucket)
        if drains:
            await bucket.put(KEY, b"drain")
        else:
            await bucket.delete(KEY)
