"""`dilaserve decode` on the golden cases and the demo models: one by one, batched, and on several ranks."""

import json
from collections import defaultdict
from pathlib import Path

import msgspec
import pytest
import torch

from dilaserve import cli
from experiments.held_out import read_prompts
from services.worker.engine.cache_mode import CacheMode
from services.worker.engine.offline_decoder import CaseRequest, DecodeOptions, RequestTrace, Trace, decode_together
from services.worker.model.model_loading import CacheSize, ModelChoice, open_runner
from tests.support.canvas_model import write_canvas_model
from tests.support.engines import assert_trace
from tests.support.gemma_files import CANVAS
from tests.support.golden import COPY, GoldenCase, threshold_cases
from tests.support.refusal import refusal


def command(cases: list[GoldenCase], cache: str, directory: Path, *options: str) -> list[str]:
    """The command for cases of one model, threshold, block length and output length."""
    case = cases[0]
    requests = [{"id": c.name, "prompt_ids": c.prompt} for c in cases]
    (directory / "case.json").write_text(json.dumps({"requests": requests}))
    lengths = ("--block-length", case.block_length, "--output-length", len(case.output))
    files = ("--model", case.model, "--input", directory / "case.json", "--out", directory / "trace.json")
    given = ("decode", *files, "--cache", cache, "--threshold", case.threshold, *lengths, "--threads", 1)
    return [*map(str, given), *options]


def decode(cases: list[GoldenCase], cache: str, directory: Path, *options: str) -> list[RequestTrace]:
    """Run the command. Returns: the requests of its trace."""
    assert cli.run(command(cases, cache, directory, *options)) == 0
    return traces(directory)


def traces(directory: Path) -> list[RequestTrace]:
    return msgspec.json.decode((directory / "trace.json").read_bytes(), type=Trace).requests


def assert_as_the_reference(decoded: list[RequestTrace], cases: list[GoldenCase]) -> None:
    assert [trace.id for trace in decoded] == [case.name for case in cases]
    for trace, case in zip(decoded, cases, strict=True):
        assert_trace(trace, case)


def alike(cases: list[GoldenCase]) -> list[list[GoldenCase]]:
    """The cases, grouped by the options of one command."""
    groups: defaultdict[tuple[float, int, int], list[GoldenCase]] = defaultdict(list)
    for case in cases:
        groups[case.threshold, case.block_length, len(case.output)].append(case)
    return list(groups.values())


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_batch_decodes_like_the_reference(ranks: int, tmp_path: Path) -> None:
    cases = max(alike(threshold_cases(("llada/seed1",), ("dual",), COPY)), key=len)
    assert len(cases) >= 3
    assert_as_the_reference(decode(cases, "dual", tmp_path, "--batch", "--tp", str(ranks)), cases)


@pytest.mark.slow
def test_two_ranks_decode_canvases_like_one(tmp_path: Path) -> None:
    model, unknown = write_canvas_model(tmp_path, rules={"max_denoising_steps": 4}, vocab_size=210), [0] * 2 * CANVAS
    prompts = [3, 10, 17, 24, 31, 38, 45, 52], [5, 6, 7]
    cases = [GoldenCase(f"{len(prompt)}", model, "block", 0.7, CANVAS, prompt, unknown, 0, []) for prompt in prompts]
    found = [decode(cases, "block", tmp_path, "--batch", "--device", "cpu", "--tp", ranks) for ranks in ("1", "2")]
    one, two = ([(each.output_ids, each.nfe) for each in requests] for requests in found)
    assert one == two


def test_decoding_stops_after_the_block_that_ends_the_text(tmp_path: Path) -> None:
    eos = json.loads((COPY / "llada" / "seed1" / "config.json").read_text())["eos_token_id"]
    cases = [c for c in threshold_cases(("llada/seed1",), ("none",), COPY) if eos in c.output[: c.block_length]]
    case = cases[0]
    [trace] = decode([case], "none", tmp_path, "--stop-at-eos")
    assert trace.output_ids == case.output[: case.block_length]


@pytest.mark.parametrize(
    ("name", "cache", "is_faster"),
    [("dream/seed1", "prefix", True), ("llada/seed1", "dual", False)],
    ids=["with the temperature", "without it"],
)
def test_the_confidence_of_dream_is_that_at_the_temperature(
    name: str, cache: str, is_faster: bool, tmp_path: Path
) -> None:
    below_one = [case for case in threshold_cases((name,), (cache,), COPY) if case.threshold < 1]
    cases = [max(below_one, key=lambda case: case.nfe)]
    given = command(cases, cache, tmp_path)
    requests = [
        {"id": f"{temperature}", "prompt_ids": case.prompt, "temperature": temperature, "top_p": 0.95, "seed": 1}
        for case in cases
        for temperature in (0.0, 0.2)
    ]
    (tmp_path / "case.json").write_text(json.dumps({"requests": requests}))
    assert cli.run(given) == 0
    greedy, sampled = traces(tmp_path)
    assert greedy.output_ids == cases[0].output
    assert (sampled.nfe < greedy.nfe / 2) == is_faster


VALID = '{"requests": [{"id": "a", "prompt_ids": [1, 2]}]}'


@pytest.mark.parametrize(
    ("change", "text", "complaint"),
    [
        ({"--model": "/nowhere"}, VALID, "no model in /nowhere"),
        ({"--input": "/nowhere.json"}, VALID, "cannot read /nowhere.json"),
        ({"--cache": "some"}, VALID, "is not one of 'none', 'prefix', 'dual'"),
        ({"--threshold": "1.5"}, VALID, "threshold must be in [0, 1]"),
        ({"--output-length": "33"}, VALID, "33 is not a multiple of 32"),
        ({"--output-length": "8192"}, VALID, "the model takes at most"),
        ({"--tp": "3"}, VALID, "degree 3 does not divide the model's 8 heads"),
        ({"--dtype": "int8"}, VALID, "is not one of 'auto', 'float32', 'bfloat16'"),
        ({"--out": "/nowhere/trace.json"}, VALID, "no directory /nowhere"),
        ({}, "{", "case.json"),
        ({}, '{"requests": []}', "no request"),
        ({}, '{"requests": [{"id": "a", "prompt_ids": []}]}', "request a: prompt_ids must not be empty"),
        ({}, '{"requests": [{"id": "a", "prompt_ids": [384]}]}', "must be in 0..383"),
        ({}, '{"requests": [{"id": "a", "prompt_ids": ["x"]}]}', "Expected `int`"),
    ],
)
def test_invalid_options_and_cases_are_reported_in_one_line(
    change: dict[str, str], text: str, complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "case.json").write_text(text)
    assert complaint in refused(tmp_path, capsys, change)


@pytest.mark.parametrize("tp", ["1", "2"])
def test_a_truncated_checkpoint_is_reported_in_one_line(
    tp: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "case.json").write_text(VALID)
    whole, cut = COPY / "llada" / "seed1", tmp_path / "model"
    cut.mkdir()
    (cut / "config.json").write_bytes((whole / "config.json").read_bytes())
    (cut / "model.safetensors").write_bytes((whole / "model.safetensors").read_bytes()[:300_000])
    assert "cannot read the weights" in refused(tmp_path, capsys, {"--model": str(cut), "--tp": tp})


def refused(directory: Path, capsys: pytest.CaptureFixture[str], change: dict[str, str]) -> str:
    """The one line of the refused command's error."""
    files = {"--input": str(directory / "case.json"), "--out": str(directory / "trace.json")}
    options = {"--model": str(COPY / "llada" / "seed1"), "--threads": "1", **files, **change}
    return refusal(capsys, "decode", *(part for option in options.items() for part in option))


MODELS = Path(__file__).parents[2] / "models"
# AMX sums in another order with another number of rows
computes_bfloat16 = pytest.mark.skipif(
    not torch.cpu.get_capabilities().get("avx512_bf16") or torch.cpu.get_capabilities()["amx_bf16"],
    reason="this CPU does not compute in bfloat16 without AMX",
)


@pytest.mark.slow
@pytest.mark.parametrize("mode", CacheMode)
@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=computes_bfloat16)])
def test_every_step_is_the_same_alone_and_in_a_batch(mode: CacheMode, dtype: str) -> None:
    model, block_length = (MODELS / "demo-block", 16) if mode is CacheMode.BLOCK else (MODELS / "demo", 32)
    requests = [CaseRequest(str(i), prompt) for i, prompt in enumerate(read_prompts(model, 12))]
    options = DecodeOptions(mode, threshold=0.8, block_length=block_length, output_length=64)
    with open_runner(ModelChoice(str(model), dtype=dtype, threads=1), CacheSize(len(requests))) as runner:
        together = decode_together(requests, runner, options)
        alone = [trace for request in requests for trace in decode_together([request], runner, options)]
    assert together == alone
