"""Settings of the reconfigurator."""

from typing import Annotated, Literal

import msgspec

from shared.settings import OptionalNatsUrl, Positive, Seconds, ServiceSettings

Retention = Annotated[float, msgspec.Meta(gt=0, le=1e9)]
Threshold = Annotated[float, msgspec.Meta(gt=0, le=1)]


class ReconfiguratorSettings(ServiceSettings, frozen=True, kw_only=True):
    database_url: str = "postgresql://postgres@127.0.0.1:5432/postgres"  # Postgres URL, for requests and decisions
    launcher: Literal["none", "process", "docker", "swarm"] = "none"  # starts and stops instances; none: no changes
    nodes: tuple[str, ...] = ()  # NAME:GPUS of each node that may run instances
    profile: str = ""  # PROFILE.csv; a TP degree that it lacks is planned once an instance registers a profile for it
    model: str = ""  # directory of the served model, for its step predictor
    predictor: str = ""  # directory of a step predictor, for the first tokens per step; empty: the model's
    tp_degrees: tuple[Positive, ...] = (1, 2, 4)  # TP degrees to plan with
    batch_sizes: tuple[Positive, ...] = (32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)  # batch sizes in tokens
    interval_s: Seconds = 300.0  # seconds between two decisions
    window_s: Seconds = 300.0  # seconds of recent workload that a decision considers
    request_retention_s: Retention = 7_776_000.0  # seconds from a request's arrival for which Postgres keeps its row
    rps_buffer: Annotated[float, msgspec.Meta(ge=0)] = 0.1  # headroom over the observed rate (0.1 = 10 %)
    wanted_threshold: Threshold = 0.85  # mean threshold for which the metric `wanted_gpus` counts the GPUs
    solver: Literal["cbc"] = "cbc"  # solver of the integer programs; the only one, so the next release ignores it
    solve_s: Seconds = 60.0  # time limit in seconds of each planning stage
    drain_s: Seconds = 10.0  # seconds that a drained instance keeps requests until their next recompute step
    start_s: Seconds = 300.0  # seconds that an instance has to become ready after its launch
    stop_s: Seconds = 30.0  # seconds that a stopped instance has to exit before it is killed
    worker_nats_url: OptionalNatsUrl = ""  # URL of the NATS server for worker containers; empty: the reconfigurator's
    worker_image: str = "dilaserve/worker"  # image of worker containers (launchers docker and swarm)
    worker_network: str = ""  # network of worker containers; empty: the engine's default
    worker_gpus: bool = False  # give worker containers their GPUs; else they compute on CPUs
    worker_volumes: tuple[str, ...] = ()  # volumes of worker containers: SOURCE:TARGET[:ro], as `docker run --volume`
    worker_memory_bytes: Annotated[int, msgspec.Meta(ge=0)] = 0  # memory limit of a worker container; 0: none
    worker_project: str = ""  # docker-compose project or Swarm stack of worker containers
