"""The steps of a tuning, in order. A step reads the results of an earlier start instead of repeating them."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from dilaserve.load.workload import read_requests
from dilaserve.outputs import add_bar, open_progress
from dilaserve.prediction.collecting import CollectedTrajectories, RecordedRun, collect, num_runs, open_engine, split
from dilaserve.prediction.suggested_slo import alone_s, suggested_slo_s
from dilaserve.prediction.training_runs import Prompt, read_prompts
from dilaserve.profiling import measure_degrees
from dilaserve.tuning.report import Tuning
from dilaserve.tuning.suggestions import Quality, agreement, exact_match, suggested_thresholds
from services.predictor.training import save_predictor, train
from services.worker.engine.engine import Engine
from services.worker.model.model_loading import ModelChoice
from services.worker.profile.profiler import full_plan
from shared.cpu import BFLOAT16_GAIN, has_bfloat16, has_invariant_bfloat16
from shared.errors import BadInput
from shared.messages.cell import CacheName
from shared.messages.requests import DEFAULT_BLOCK_LENGTH
from shared.profile import LatencyProfile, read_profile, write_profile
from shared.text import TextModel

OPTIONS, PROFILE, RUNS, PREDICTOR = "tune.json", "profile.csv", "runs", "predictor"  # in the folder of the results
STORED = ("model", "prompts", "thresholds", "cache", "requests", "held_out", "max_tokens", "device", "dtype")
PART_PROMPTS = 8  # of a file of recorded runs, at which an interrupted recording continues

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneOptions:
    """The options of `dilaserve tune`, checked."""

    model: str  # as given
    directory: Path  # of the checkpoint
    text: TextModel
    prompts: Path
    out: Path
    degrees: Sequence[int]  # TP degrees, ascending
    thresholds: Sequence[float]  # candidates, ascending
    cache: CacheName
    requests: int
    held_out: int
    max_tokens: int
    repeats: int
    device: str
    dtype: str
    threads: int


def check_same_options(directory: Path, options: Mapping[str, str]) -> None:
    """Store the options, or compare them with those of an earlier start. Raises: BadInput naming one that differs."""
    path = directory / OPTIONS
    if not path.exists():
        path.write_bytes(msgspec.json.format(msgspec.json.encode(options)))
        return
    try:
        stored = msgspec.json.decode(path.read_bytes(), type=dict[str, str])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadInput(f"--out {directory}: {OPTIONS}: {error}; choose another folder") from None
    for name, value in options.items():
        if stored.get(name) != value:
            raise BadInput(
                f"--out {directory} has results with {name} {stored.get(name)}, not {value}; choose another folder"
            )


def tune_model(options: TuneOptions, report: Report) -> Tuning:
    """Profile, record, train, suggest. Raises: BadInput if the prompts or the model cannot be used."""
    card = options.text.card
    block_length = card.block_length or DEFAULT_BLOCK_LENGTH
    prompts = read_prompts(options.prompts, options.text, block_length, [])
    training, testing = split(prompts, options.requests, options.held_out)
    # Only now, so that a wrong path of the prompts leaves no stored options
    check_same_options(options.out, {name: str(getattr(options, name)) for name in STORED})
    profile, device = _profile(options, report)
    learned, tested = _record(options, training, testing, report)
    report("3 of 4: training the step predictor")
    trained = train(learned.trajectories, tested.fixed.trajectories, tested.changing.trajectories, options.thresholds)
    save_predictor(options.out / PREDICTOR, trained)
    report("4 of 4: suggesting thresholds and an SLO")
    if options.dtype == "auto" and device == "cpu" and has_bfloat16() and not has_invariant_bfloat16():
        report(f"with --dtype bfloat16 {BFLOAT16_GAIN}, on this CPU too; tune with it and compare the reports")
    used = [*training, *testing]
    quality = _quality(options, len(used), learned, tested)
    thresholds = suggested_thresholds(quality)
    if not quality.values[-1]:
        report(f"warning: 0 % {quality.measure} at threshold {thresholds[-1]:g}; check the answers of the prompts")
    mean_prompt = round(float(np.mean([len(prompt.ids) for prompt in used])))
    mean_output = round(float(np.mean([prompt.output_length for prompt in used])))
    latency_s = alone_s(profile, trained.card, card, mean_prompt, mean_output, options.cache)
    slo_s = suggested_slo_s(latency_s)
    return Tuning(
        model=card.name,
        device=device,
        prompts=len(used),
        cache=options.cache,
        profile=profile,
        trained=trained,
        quality=quality,
        thresholds=thresholds,
        alone_s=latency_s,
        slo_s=slo_s,
        command=_command(options, thresholds, slo_s),
    )


def _profile(options: TuneOptions, report: Report) -> tuple[LatencyProfile, str]:
    """The profile of all TP degrees, stored after each, and the device's name if one was measured now."""
    path = options.out / PROFILE
    profile = read_profile(path) if path.exists() else LatencyProfile()
    missing = [tp for tp in options.degrees if tp not in profile.tp_degrees]
    kept = "" if len(missing) == len(options.degrees) else f", kept from an earlier start: {profile.tp_degrees}"
    report(f"1 of 4: measuring the latency profile of TP {', '.join(map(str, options.degrees))}{kept}")
    device = "this machine"
    choice = ModelChoice(str(options.directory), options.device, options.dtype, threads=options.threads)
    if missing:
        with open_progress() as progress:
            plan = full_plan(options.max_tokens, options.repeats)
            for measured, name in measure_degrees(choice, missing, plan, progress):
                profile, device = profile.completed_from(measured), name
                write_profile(path, profile)
    return profile, device


def _record(
    options: TuneOptions, training: Sequence[Prompt], testing: Sequence[Prompt], report: Report
) -> tuple[CollectedTrajectories, CollectedTrajectories]:
    total = num_runs([*training, *testing], options.thresholds)
    report(f"2 of 4: recording {total} runs of {len(training) + len(testing)} prompts at each threshold")
    settings = {"device": options.device, "dtype": options.dtype}
    with (
        open_engine(options.directory, options.cache, options.threads, **settings) as engine,
        open_progress() as progress,
    ):
        on_run = add_bar(progress, "runs", total)
        record = partial(_record_parts, engine, thresholds=options.thresholds, on_run=on_run)
        return (
            record(training, directory=options.out / RUNS / "training"),
            record(testing, directory=options.out / RUNS / "held-out"),
        )


def _record_parts(
    engine: Engine,
    prompts: Sequence[Prompt],
    thresholds: Sequence[float],
    directory: Path,
    on_run: Callable[[], object],
) -> CollectedTrajectories:
    """Run every prompt but those of stored parts; call `on_run` for each run. Raises: BadInput if one cannot run."""
    directory.mkdir(parents=True, exist_ok=True)
    all_runs = CollectedTrajectories(RecordedRun(), RecordedRun())
    for number, first in enumerate(range(0, len(prompts), PART_PROMPTS)):
        path, group = directory / f"{number:04}.runs", prompts[first : first + PART_PROMPTS]
        if path.exists():
            part = msgspec.msgpack.decode(path.read_bytes(), type=CollectedTrajectories, dec_hook=_unpacked)
            for _ in part.trajectories:
                on_run()
        else:
            part = collect(engine, group, thresholds, number, on_run)
            draft = path.with_suffix(".draft")
            draft.write_bytes(msgspec.msgpack.encode(part, enc_hook=_packed))
            draft.replace(path)
        all_runs.add(part)
    return all_runs


def _packed(array: Any) -> tuple[str, tuple[int, ...], bytes]:
    return array.dtype.str, array.shape, array.tobytes()


def _unpacked(kind: type, packed: Any) -> Any:  # noqa: ARG001  (an array's type of elements is stored)
    dtype, shape, data = packed
    return np.frombuffer(data, dtype).reshape(shape)


def _quality(
    options: TuneOptions, count: int, learned: CollectedTrajectories, tested: CollectedTrajectories
) -> Quality:
    """By the answers of the first `count` rows, or without answers by the outputs at the highest threshold."""
    outputs = [*learned.fixed.outputs, *tested.fixed.outputs]
    answers = [row.answer for row in read_requests(options.prompts, "--prompts")[:count]]
    texts = [options.text.decode(output) for output in outputs]
    return exact_match(options.thresholds, texts, answers) or agreement(options.thresholds, outputs)


def _command(options: TuneOptions, thresholds: Sequence[float], slo_s: float) -> str:
    given = {
        "--model": options.model,
        "--predictor": options.out / PREDICTOR,
        "--profile": options.out / PROFILE,
        "--thresholds": ",".join(map(str, thresholds)),
        "--slo": f"{slo_s:g}",
    } | ({"--dtype": options.dtype} if options.dtype != "auto" else {})
    return shlex.join(["dilaserve", "up", *(str(part) for pair in given.items() for part in pair)])
