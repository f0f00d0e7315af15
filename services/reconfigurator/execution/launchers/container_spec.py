"""The container of an instance, the same for every engine. Pure."""

from collections.abc import Iterable, Mapping

import msgspec

from services.reconfigurator.settings import ReconfiguratorSettings
from shared.messages.launch import InstanceSpec
from shared.settings import PREFIX, to_environ

LABEL = "dilaserve."
CELL, NODE, GPUS = LABEL + "cell", LABEL + "node", LABEL + "gpus"
MODEL_VARIABLE = f"{PREFIX}MODEL"  # both services read it
# Settings whose values workers take from the reconfigurator
COMMON = ("nats_url", "nats_ca", "cell", "log_level", "log_format", "otlp_endpoint", "metrics_host", "metrics_port")
ALIAS = "worker"  # network alias of all workers; Prometheus finds them by it
SHM_BYTES = 1 << 30  # NCCL's ranks use shared memory; an engine's default is 64 MiB

TMP = "/tmp"  # noqa: S108  (of the container: besides its volumes, the only directory that it can write)


class WorkerTemplate:
    """The properties that all worker containers of a cell share."""

    def __init__(self, settings: ReconfiguratorSettings, environ: Mapping[str, str]) -> None:
        """Workers get the `DILASERVE_*` and `OTEL_*` entries of `environ` that are not the reconfigurator's own."""
        own = {PREFIX + field.name.upper() for field in msgspec.structs.fields(ReconfiguratorSettings)} - {
            MODEL_VARIABLE
        }
        passed = {key: value for key, value in environ.items() if key.startswith((PREFIX, "OTEL_")) and key not in own}
        common = {name: getattr(settings, name) for name in COMMON}
        if settings.worker_nats_url:
            common["nats_url"] = settings.worker_nats_url
        self.settings = settings
        self._environ = {**passed, **to_environ(common)}
        self._labels = _project_labels(settings) if settings.worker_project else {}

    def name(self, spec: InstanceSpec) -> str:
        """The container's name: one per place, so an engine refuses a second."""
        return f"{self.settings.cell}-{spec.name}"

    def labels_of(self, spec: InstanceSpec) -> dict[str, str]:
        return {**self._labels, CELL: self.settings.cell, NODE: spec.node, GPUS: ",".join(map(str, spec.gpus))}

    def environ_of(self, spec: InstanceSpec) -> dict[str, str]:
        device = "cuda" if self.settings.worker_gpus else "cpu"
        own = {"instance": spec.name, "node": spec.node, "gpus": spec.gpus, "tp": spec.tp, "device": device}
        return {**self._environ, **to_environ(own)}


def read_specs(labels: Iterable[Mapping[str, str]]) -> list[InstanceSpec]:
    """The instances that the labels of containers identify."""
    return [spec for one in labels if (spec := read_spec(one)) is not None]


def read_spec(labels: Mapping[str, str]) -> InstanceSpec | None:
    """The instance that a container's labels identify; None if they identify none."""
    try:
        gpus = tuple(int(gpu) for gpu in labels[GPUS].split(","))
        return msgspec.convert({"node": labels[NODE], "gpus": gpus}, InstanceSpec)
    except (KeyError, ValueError, msgspec.ValidationError):
        return None


def _project_labels(settings: ReconfiguratorSettings) -> dict[str, str]:
    """Make docker-compose or `docker stack` show and remove the workers with the rest of its project or stack."""
    if settings.launcher == "swarm":
        return {"com.docker.stack.namespace": settings.worker_project}
    labels = {"project": settings.worker_project, "service": "worker", "container-number": "1", "oneoff": "False"}
    return {f"com.docker.compose.{key}": value for key, value in labels.items()}
