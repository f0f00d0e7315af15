"""One stack for the end-to-end tests that leave it whole."""

from collections.abc import Iterator

import pytest

from dilaserve.commands.up import DEMO_MODEL
from tests.support.stack import FIXED, Stack, new_data_dir, running_stack


@pytest.fixture(scope="session")
def stack() -> Iterator[Stack]:
    """Two instances of the demo model."""
    with new_data_dir() as data_dir, running_stack(DEMO_MODEL, data_dir, *FIXED) as running:
        yield running
        assert running.stop() == 0
