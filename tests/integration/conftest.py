"""A Postgres server for the tests that need one."""

from tests.support.postgres import database, postgres, postgres_server
