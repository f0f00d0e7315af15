"""What `dilaserve up` was asked for, checked."""

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from shared.cpu import num_cores
from shared.errors import BadInput
from shared.instance_counts import read_instance_counts
from shared.messages.launch import InstanceSpec
from shared.model_files import find_model
from shared.predictor_card import CARD_FILE

POLICIES = ("dilaserve", "llumnix", "infaas", "fixed")
CACHES = ("none", "prefix", "dual")
NODE = "local"  # this machine, as a node of the cluster
TP_DEGREES = (1, 2, 4)  # those the worker can run
METRICS_ORDER = ("scheduler", "predictor", "reconfigurator", "worker")  # on ports one after another
SYNC_INTERVAL = r"always|\d+(ms|s|m|h)"


@dataclass(frozen=True, slots=True)
class StackOptions:
    """One embedded stack. `instances` holds the TP degree of each; a slot is a share of the CPU cores."""

    host: str
    port: int
    model: Path
    model_name: str  # as clients call it
    instances: tuple[int, ...]
    policy: str
    thresholds: tuple[float, ...]  # ascending; policies with a fixed one take the highest
    slo_s: float
    cache: str
    auth: bool  # whether clients need an API key
    shed: bool  # whether requests that cannot meet their SLO are refused
    data_dir: Path
    sync_interval: str  # how often NATS forces its files to disk: `always`, or such as 2m
    nats_url: str | None = None  # None: embedded
    database_url: str | None = None  # None: embedded
    slots: int = 0  # of the node; with `reconfigure` instances may come to take all of them
    reconfigure: bool = False
    profile: Path | None = None  # PROFILE.csv of every TP degree; None: each instance measures its own
    metrics_port: int = 0  # the first of the ports for metrics; 0: none are served

    @property
    def threads_per_slot(self) -> int:
        """CPU threads of one TP rank."""
        return share_cores(num_cores(), self.slots if self.reconfigure else sum(self.instances))

    @property
    def metrics_ports(self) -> range:
        """One for each service of METRICS_ORDER, the last for each slot: a worker takes that of its first."""
        count = len(METRICS_ORDER) - 1 + self.slots if self.metrics_port else 0
        return range(self.metrics_port, self.metrics_port + count)

    @property
    def specs(self) -> list[InstanceSpec]:
        """The instances on their slots, one after another."""
        ends = list(accumulate(self.instances))
        return [
            InstanceSpec(node=NODE, gpus=tuple(range(end - tp, end)))
            for tp, end in zip(self.instances, ends, strict=True)
        ]


def share_cores(cores: int, ranks: int) -> int:
    """CPU threads of each rank: about an equal share of the cores but one, which the services want; at least 1."""
    return max(1, round((cores - 1) / ranks))


def read_instances(text: str | None, slots: int) -> tuple[int, ...]:
    """TP degrees of the instances: `2x1,1x2` is (1, 1, 2). None: as many TP-1 instances as fit, at most two.

    Raises: BadInput if the text is malformed, a degree is not supported, or the sum exceeds `slots`.
    """
    if text is None:
        return (1,) * min(2, slots)
    degrees = read_instance_counts(text, "--instances")
    if unsupported := set(degrees) - set(TP_DEGREES):
        raise BadInput(f"--instances {text}: TP {min(unsupported)} is not supported; accepted: {_listed(TP_DEGREES)}")
    if sum(degrees) > slots:
        raise BadInput(f"--instances {text} needs {sum(degrees)} slots; there are {slots} (see --slots)")
    return degrees


def read_thresholds(text: str) -> tuple[float, ...]:
    """The allowed thresholds, ascending. Raises: BadInput unless each is a number in (0, 1]."""
    try:
        thresholds = sorted({float(part) for part in text.split(",")})
    except ValueError:
        thresholds = []
    if not thresholds or not all(0 < threshold <= 1 for threshold in thresholds):
        raise BadInput(f"--thresholds {text}: accepted are numbers in (0, 1], separated by commas, such as 0.9")
    return tuple(thresholds)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def default_policy(model: Path) -> str:
    """`dilaserve`, which needs a step predictor, where the model's directory has one; else `fixed`."""
    return "dilaserve" if (model / "predictor" / CARD_FILE).is_file() else "fixed"


def check_choice(option: str, value: str, accepted: Sequence[str]) -> str:
    """Raises: BadInput naming the accepted values if `value` is none of them."""
    if value not in accepted:
        raise BadInput(f"{option} {value}: accepted: {_listed(accepted)}")
    return value


def check_profile(path: Path | None, instances: Sequence[int], *, reconfigure: bool) -> Path | None:
    """The absolute path of the profile. Raises: BadInput if it cannot be read or lacks an instance's TP degree, or if
    there is none to plan with."""
    if path is None:
        if reconfigure:
            raise BadInput(
                "--reconfigure needs --profile PROFILE.csv, with every TP degree to plan with; "
                "`dilaserve profile --tp 1,2 --out PROFILE.csv` measures one"
            )
        return None
    from shared.profile import read_profile  # noqa: PLC0415  (NumPy takes its time)

    if missing := set(instances) - set(read_profile(path).tp_degrees):
        raise BadInput(f"--profile {path}: it has no rows for tp {min(missing)}, which --instances asks for")
    return path.resolve()


def check_model(model: str) -> Path:
    """The absolute path of a checkpoint directory; a hub id is fetched. Raises: BadInput if it is none."""
    directory = find_model(model)
    if not (directory / "config.json").is_file():
        raise BadInput(f"--model {directory}: not a checkpoint directory (it has no config.json)")
    return directory.resolve()


def check_sync_interval(text: str) -> str:
    if re.fullmatch(SYNC_INTERVAL, text) is None:
        raise BadInput(f"--sync-interval {text}: accepted: always, or a duration such as 500ms, 10s, 2m")
    return text


def _listed(values: Sequence[object]) -> str:
    return ", ".join(str(value) for value in values)
