"""Settings of the reconfigurator."""

from typing import Annotated, Literal

import msgspec

from services.reconfigurator.planning.plan import Solver
from shared.settings import Positive, Seconds, ServiceSettings


class ReconfiguratorSettings(ServiceSettings, frozen=True, kw_only=True):
    database_url: str = "postgresql://postgres@127.0.0.1:5432/postgres"
    launcher: Literal["none", "process", "docker", "swarm"] = "none"  # none: the instances stay as they are
    nodes: tuple[str, ...] = ()  # NAME:GPUS of each node that instances may stand on
    profile: str = ""  # PROFILE.csv; TP degrees that it lacks are planned with once an instance has brought a profile
    predictor: str = ""  # directory of a step predictor; its card tells tokens per step before any were seen
    tp_degrees: tuple[Positive, ...] = (1, 2, 4)
    thresholds: tuple[Annotated[float, msgspec.Meta(gt=0, le=1)], ...] = (0.5, 0.6, 0.7, 0.8, 0.9)  # as the scheduler's
    batch_sizes: tuple[Positive, ...] = (32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)  # tokens
    cache: Literal["none", "prefix", "dual"] = "none"  # as the workers have it
    interval_s: Seconds = 300.0  # between two decisions
    window_s: Seconds = 300.0  # of the workload that a decision looks at
    rps_buffer: Annotated[float, msgspec.Meta(ge=0)] = 0.1  # planned for so much more than was seen
    solver: Solver = Solver.CBC
    solve_s: Seconds = 60.0  # limit for each stage
    drain_s: Seconds = 10.0  # how long a drained instance keeps requests until their next recompute step
    start_s: Seconds = 300.0  # how long an instance may take from its launch until it serves
    stop_s: Seconds = 30.0  # how long a stopped one may take to end before it is killed
    worker_image: str = "dilaserve/worker"  # of the containers that the launchers docker and swarm start
    worker_network: str = ""  # that they join; empty: the engine's default
    worker_gpus: bool = False  # whether they get the GPUs of their place; else they compute on CPUs
    worker_volumes: tuple[str, ...] = ()  # SOURCE:TARGET or SOURCE:TARGET:ro, as `docker run --volume` takes them
    worker_project: str = ""  # the docker-compose project or Swarm stack that they are removed with
