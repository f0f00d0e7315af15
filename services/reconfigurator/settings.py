"""Settings of the reconfigurator."""

from shared.settings import ServiceSettings


class ReconfiguratorSettings(ServiceSettings, frozen=True, kw_only=True):
    database_url: str = "postgresql://postgres@127.0.0.1:5432/postgres"
