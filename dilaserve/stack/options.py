"""A stack by the options of `dilaserve up`, validated."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, count
from pathlib import Path

from dilaserve.stack.up_options import DEMO_MODEL, UpOptions
from services.worker.model.families import read_config
from shared.bus.users import read_producers
from shared.cpu import num_cores
from shared.errors import BadInput
from shared.gpus import num_gpus
from shared.instance_counts import read_instance_counts
from shared.messages.cell import CacheName, cache_of
from shared.messages.launch import InstanceSpec
from shared.model_files import default_model_name, find_model, read_model_card
from shared.profile import read_profile
from shared.urls import is_loopback

NODE = "local"  # node name of this machine
TP_DEGREES = (1, 2, 4)  # TP degrees that the worker supports
NATS_NODES = (1, 3, 5)  # accepted numbers of embedded NATS servers


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """One embedded stack: the options of `dilaserve up`, checked, and what follows from them."""

    options: UpOptions
    model: Path
    model_name: str  # in the API
    instances: tuple[int, ...]  # TP degree of each instance
    slots: int  # of the node: its GPUs, or equal shares of the CPU cores; `reconfigure` may use all
    auth: bool  # clients need an API key
    reconfigures: bool = False  # instances are planned and changed
    producers: tuple[str, ...] = ()  # named producers of the embedded bus

    @property
    def threads_per_slot(self) -> int:
        """CPU threads of one TP rank."""
        return share_cores(num_cores(), self.slots if self.reconfigures else sum(self.instances))

    @property
    def gateways(self) -> list[str]:
        """The name of each gateway's program."""
        return ["gateway", *(f"gateway-{number}" for number in range(2, self.options.gateways + 1))]

    @property
    def schedulers(self) -> list[str]:
        """The name of each scheduler's program."""
        return ["scheduler", "scheduler-2"] if self.options.standby else ["scheduler"]

    @property
    def metrics_ports(self) -> dict[str, int]:
        """A port for each program and each slot, consecutive; a worker uses that of its first slot, `slot-0` for
        example. None for one gateway, which has the port of the API alone; without --metrics-port there are none."""
        first, slots = self.options.first_metrics_port, [f"slot-{slot}" for slot in range(self.slots)]
        own = self.gateways if self.options.gateways > 1 else []
        names = [self.schedulers[0], "predictor", "reconfigurator", *slots, *own, *self.schedulers[1:]]
        return dict(zip(names, count(first), strict=False)) if first else {}

    @property
    def specs(self) -> list[InstanceSpec]:
        """The instances on consecutive slots."""
        ends = list(accumulate(self.instances))
        return [
            InstanceSpec(node=NODE, gpus=tuple(range(end - tp, end)))
            for tp, end in zip(self.instances, ends, strict=True)
        ]


def check_options(options: UpOptions) -> Stack:
    """The stack that the options describe; a hub id is downloaded. Raises: BadInput if one is invalid."""
    directory = check_model(options.model)
    gpus = 0 if options.device == "cpu" else num_gpus()
    slots = count_slots(options.slots, options.device, gpus)
    instances = read_instances(options.instances, slots, default=gpus or 2)
    choose_cache(options.cache, directory)
    check_edits(options.edit_threshold, directory)
    if options.thresholds is not None:
        read_thresholds(options.thresholds)
    check_sync_interval(options.sync_interval)
    check_nats_nodes(options.nats_nodes, options.nats_url)
    check_profile(options.profile, instances)
    return Stack(
        options=options,
        model=directory,
        model_name=default_model_name(options.model),
        instances=instances,
        slots=slots,
        auth=not is_loopback(options.host) if options.auth is None else options.auth,
        reconfigures=min(gpus, slots) > 1 if options.reconfigure is None else options.reconfigure,
        producers=choose_producers(options.producers, options.nats_url),
    )


def share_cores(cores: int, ranks: int) -> int:
    """CPU threads per rank: an equal share of all cores but one, which is for the services; at least 1."""
    return max(1, round((cores - 1) / ranks))


def count_slots(slots: int | None, device: str, gpus: int) -> int:
    """The number of slots: `slots`, or if None the GPUs, or without a GPU the CPU cores, at least two.

    Raises: BadInput for more slots than GPUs, since two instances would share one, and for `cuda` without a GPU.
    """
    if device == "cuda" and not gpus:
        raise BadInput("--device cuda: nvidia-smi lists no GPU that is visible here; accepted: auto, cpu")
    if device == "cpu" or not gpus:
        return slots or max(2, num_cores())
    if slots is not None and slots > gpus:
        raise BadInput(f"--slots {slots}: there are {gpus} GPUs, and each is one slot; --device cpu uses the CPU cores")
    return slots or gpus


def read_instances(text: str | None, slots: int, default: int = 2) -> tuple[int, ...]:
    """TP degrees: `2x1,1x2` is (1, 1, 2). None: `default` instances of TP 1, as far as they fit. Raises: BadInput."""
    if text is None:
        return (1,) * min(default, slots)
    degrees = read_instance_counts(text, "--instances")
    if unsupported := set(degrees) - set(TP_DEGREES):
        accepted = ", ".join(map(str, TP_DEGREES))
        raise BadInput(f"--instances {text}: TP {min(unsupported)} is not supported; accepted: {accepted}")
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
        raise BadInput(f"--thresholds {text}: accepted: comma-separated numbers in (0, 1], such as 0.5,0.9")
    return tuple(thresholds)


def read_integers(option: str, text: str) -> list[int]:
    """Comma-separated whole numbers. Raises: BadInput unless each is at least 1."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = [0]
    if min(numbers) < 1:
        raise BadInput(f"{option} {text}: accepted: comma-separated whole numbers of at least 1")
    return numbers


def choose_producers(text: str, nats_url: str | None) -> tuple[str, ...]:
    """The named producers. Raises: BadInput for an invalid name, or without the embedded server, which has them."""
    producers = read_producers(text)
    if producers and nats_url:
        raise BadInput(
            f"--producers {text}: the server of --nats-url declares its own users; "
            "`dilaserve bus-users --producers` prints them"
        )
    return producers


def check_nats_nodes(number: int, nats_url: str | None) -> None:
    """Raises: BadInput for a number of servers of which a majority is no smaller if one fails, or without the embedded
    ones."""
    if number not in NATS_NODES:
        raise BadInput(f"--nats-nodes {number}: accepted: {', '.join(map(str, NATS_NODES))}")
    if number > 1 and nats_url:
        raise BadInput(
            f"--nats-nodes {number}: not with --nats-url; name each server of your cluster there, with commas"
        )


def check_profile(path: Path | None, instances: Sequence[int]) -> None:
    """Raises: BadInput if the profile is invalid or lacks an instance's TP degree."""
    if path is None:
        return
    if missing := set(instances) - set(read_profile(path).tp_degrees):
        raise BadInput(f"--profile {path}: no rows for tp {min(missing)}, which --instances needs")


def check_model(model: str) -> Path:
    """The absolute path of a checkpoint directory. A hub id is downloaded, its weights after its configuration was
    checked. Raises: BadInput if it is invalid, or of an architecture that is not supported, or lacks files."""
    directory = find_model(model, weights=False)
    try:
        read_config(directory)
        if directory.resolve() != DEMO_MODEL:  # that one is whole
            from services.worker.model.weights import check_weights  # noqa: PLC0415  (imports torch: two seconds)
            from shared.text import TextModel  # noqa: PLC0415  (imports transformers: two seconds)

            TextModel(directory, default_model_name(model)).check_template()
            directory = find_model(model)
            check_weights(directory)
    except BadInput as error:
        raise BadInput(f"--model {model}: {error}") from None
    return directory.resolve()


def choose_cache(cache: CacheName | None, model: Path) -> CacheName:
    """The workers' KV cache; if None, the fastest one of the model. Raises: BadInput if the model cannot use it."""
    return cache_of(cache, read_model_card(model, model.name), "--cache ")


def check_edits(edit_threshold: float | None, model: Path) -> None:
    """Raises: BadInput if the model cannot change tokens."""
    if edit_threshold is not None and edit_threshold < 1 and not read_config(model).can_edit:
        raise BadInput(f"--edit-threshold {edit_threshold:g}: this model does not change tokens; LLaDA2.1 does")


def check_sync_interval(text: str) -> None:
    """Raises: BadInput if NATS would not accept it."""
    if re.fullmatch(r"always|\d+(ms|s|m|h)", text) is None:
        raise BadInput(f"--sync-interval {text}: accepted: always, or a duration such as 500ms, 10s or 2m")
