"""Small files in the formats of the benchmarks, with questions for the demo model."""

import gzip
import json
from collections.abc import Iterable
from pathlib import Path


def write_benchmark_files(directory: Path) -> Path:
    """Write the files of all benchmarks. Returns: the directory."""
    _write(directory / "gsm8k_test.jsonl.gz", (_sum(2, i) for i in range(4)))
    _write(directory / "gsm8k_train_500.jsonl.gz", (_sum(i, 5) for i in range(8)))
    choice = {"question": "What is 1 + 1?", "options": ["1", "2", "3"], "answer": "B", "category": "math"}
    _write(directory / "mmlu_pro_500.jsonl.gz", [choice])
    _write(directory / "mbpp.jsonl.gz", (_task(i) for i in (1, 2, 3, 4, 11)))
    return directory


def _sum(a: int, b: int) -> dict[str, str]:
    return {"question": f"What is {a} + {b}?", "answer": f"The answer is {a + b}.\n#### {a + b}"}


def _task(number: int) -> dict[str, object]:
    return {
        "task_id": number,
        "text": "Add 1.",
        "code": f"def f{number}(x):\n    return x + 1",
        "test_list": [f"assert f{number}(1) == 2"],
        "test_setup_code": "",
    }


def _write(path: Path, rows: Iterable[object]) -> None:
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
