"""The golden vectors: decode traces of the published reference implementations on tiny models."""

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.worker.model.families import FAMILIES

COPY = Path(__file__).parents[1] / "golden"  # the part that the repository holds
FULL = Path(os.environ.get("DILASERVE_SHARED", COPY.parents[2] / "shared")) / "golden"
GOLDEN = FULL if FULL.is_dir() else COPY
BLOCK_CAUSAL = ("sdar", "llada2")


def _sets(families: Iterable[str]) -> list[str]:
    paths = (path.parent for family in families for path in GOLDEN.glob(f"{family}/*/decode.json"))
    return sorted(f"{path.parent.name}/{path.name}" for path in paths)


SETS = _sets(family for family in FAMILIES if family not in BLOCK_CAUSAL)
BLOCK_SETS = _sets(BLOCK_CAUSAL)
RELATIVES = ["relatives/dream-coder", "relatives/llada-1.5", "relatives/llada-moe"]
BLOCK_RELATIVES = ["relatives/fast-dllm-v2"]


def directory(name: str) -> Path:
    """Of a set. Those of relatives are in the repository only."""
    return (COPY if name.startswith("relatives/") else GOLDEN) / name


@dataclass(frozen=True, slots=True)
class GoldenCase:
    """One decode of one prompt."""

    name: str
    model: Path
    # none, prefix, dual; none-block: Dream without a cache, block by block; block, block-edit: block-causal models
    mode: str
    threshold: float
    block_length: int
    prompt: list[int]
    output: list[int]  # the decoded tokens
    nfe: int  # forward passes that unmasked tokens
    steps: list[dict[str, Any]]  # one per such forward pass
    edit_threshold: float | None = None  # of mode block-edit, whose forward passes are all listed
    max_post_steps: int = 0

    @property
    def block_steps(self) -> list[tuple[int, list[int], list[int]]]:
        """Block, positions from the start of the output and tokens of each step that unmasked tokens. The blocks of
        block-causal models count from the prompt's start there, and from the first one that the output is in here."""
        p = len(self.prompt)
        first = p // self.block_length if self.mode == "block" else 0
        return [(s["block"] - first, [x - p for x in s["unmask_pos"]], s["unmask_id"]) for s in self.steps]


def threshold_cases(models: tuple[str, ...], modes: tuple[str, ...], root: Path | None = None) -> list[GoldenCase]:
    """The cases of block-wise threshold decoding with these models and modes."""
    paths = (directory(name) if root is None else root / name for name in models)
    return [case for path in paths for case in _read(path) if case.mode in modes]


def _read(model: Path) -> list[GoldenCase]:
    traces = json.loads((model / "decode.json").read_text())
    prompts = {prompt["name"]: prompt["ids"] for prompt in traces["prompts"]}
    return [
        GoldenCase(
            name=f"{model.parent.name}/{model.name}/{case['id']}",
            model=model,
            mode=case["mode"],
            threshold=case["threshold"],
            block_length=case["block_length"],
            prompt=prompts[case["prompt"]],
            output=case["final_ids"][case["prompt_len"] :],
            nfe=case["nfe"] - (0 if "edit_threshold" in case else case["nfe_no_progress"]),
            steps=[step for step in case["steps"] if step["unmask_pos"] or "edit_threshold" in case],
            edit_threshold=case.get("edit_threshold"),
            max_post_steps=case.get("max_post_steps", 0),
        )
        for case in traces["cases"]
        if case["policy"] == "threshold" and case["block_length"]
    ]
