"""A Postgres server, and a certificate, for the tests that need one."""

from tests.support.certificates import certificate
from tests.support.postgres import database, postgres, postgres_server
