"""The containers of instances."""

from services.reconfigurator.execution.launchers.container_spec import WorkerTemplate, read_spec, read_template
from services.reconfigurator.settings import ReconfiguratorSettings
from shared.messages.launch import InstanceSpec

SPEC = InstanceSpec(node="node.a", gpus=(2, 3))


def template(environ: dict[str, str] | None = None, **settings: object) -> WorkerTemplate:
    return read_template(ReconfiguratorSettings(cell="east", **settings), environ or {})  # type: ignore[arg-type]


def test_labels_identify_the_instance() -> None:
    assert read_spec(template().labels_of(SPEC)) == SPEC


def test_foreign_labels_identify_no_instance() -> None:
    assert read_spec({"dilaserve.node": "a", "dilaserve.gpus": "x"}) is None
    assert read_spec({}) is None


def test_workers_get_their_settings_and_no_secret() -> None:
    environ = {"DILASERVE_DATABASE_URL": "secret", "DILASERVE_MODEL": "m", "OTEL_X": "y", "HOME": "/"}
    variables = template(environ, nats_url="nats://bus").environ_of(SPEC)
    assert (variables["DILASERVE_MODEL"], variables["OTEL_X"]) == ("m", "y")
    assert (variables["DILASERVE_NATS_URL"], variables["DILASERVE_CELL"]) == ("nats://bus", "east")
    assert not {"DILASERVE_DATABASE_URL", "HOME"} & set(variables)


def test_workers_get_the_credentials_of_their_own_user() -> None:
    own, workers = "nats://reconfigurator:secret@bus", "nats://worker:password@bus"
    environ = {"DILASERVE_NATS_URL": own, "DILASERVE_WORKER_NATS_URL": workers}
    variables = template(environ, nats_url=own, worker_nats_url=workers).environ_of(SPEC)
    assert variables["DILASERVE_NATS_URL"] == workers
    assert "secret" not in str(variables)


def test_a_worker_uses_gpus_only_if_it_gets_some() -> None:
    assert template(worker_gpus=True).environ_of(SPEC)["DILASERVE_DEVICE"] == "cuda"
    assert template(worker_gpus=False).environ_of(SPEC)["DILASERVE_DEVICE"] == "cpu"


def test_workers_belong_to_the_given_project_or_stack() -> None:
    compose = template(worker_project="p", launcher="docker").labels_of(SPEC)
    stack = template(worker_project="p", launcher="swarm").labels_of(SPEC)
    assert (compose["com.docker.compose.project"], stack["com.docker.stack.namespace"]) == ("p", "p")


def test_a_container_is_named_after_its_node_and_gpus() -> None:
    assert template().name(SPEC) == "east-worker-node_a-2-3"
