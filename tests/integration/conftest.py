"""The fixtures of several tests."""

from tests.support.scheduled_cell import cluster
