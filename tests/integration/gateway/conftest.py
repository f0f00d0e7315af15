"""The fixtures of the gateway's tests."""

from tests.support.gateway import (
    changes,
    client,
    gateway,
    lonely_gateway,
    own_gateway,
    own_lonely_gateway,
    own_scheduler,
    scheduler,
    settings,
    shared,
    shared_cell,
    shared_lonely_gateway,
)
