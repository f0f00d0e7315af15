"""lm-eval: a generative task like GSM8K, of the demo model's held-out problems, and a log-likelihood."""

import json
import os
import subprocess
import sys
from pathlib import Path

URL = os.environ["OPENAI_BASE_URL"]
MODEL = Path(__file__).parents[2] / "models/demo-block"
PROBLEMS = MODEL / "heldout.jsonl"
COMPLETIONS = f"model=demo-block,base_url={URL}/completions,tokenizer={MODEL}"
COUNT = 8  # problems
GENERATE = """task: pears
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: generate_until
doc_to_text: "{{prompt}}"
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["</s>"], max_gen_toks: 64}
filter_list:
- name: number
  filter: [{function: regex, regex_pattern: "The answer is (-?[0-9]+)"}, {function: take_first}]
metric_list: [{metric: exact_match}]
"""
CHOOSE = """task: pears
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{prompt}}"
doc_to_choice: ["{{answer}}", "other"]
doc_to_target: 0
metric_list: [{metric: acc}]
"""


def evaluated(folder: Path, task: str, model: str, arguments: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run lm-eval on the first problems."""
    data = folder / "problems.jsonl"
    data.write_text("".join(PROBLEMS.read_text().splitlines(keepends=True)[:COUNT]))
    (folder / "pears.yaml").write_text(task.replace("DATA", str(data)))
    command = [sys.executable, "-P", "-m", "lm_eval", "run", "--model", model, "--model_args", arguments, *options]
    command += ["--tasks", "pears", "--include_path", str(folder), "--output_path", str(folder / "out")]
    environ = {**os.environ, "HF_HOME": str(folder / "cache"), "HF_HUB_OFFLINE": "1"}
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=False)


def exact_match(folder: Path) -> float:
    [results] = (folder / "out").rglob("results_*.json")
    return float(json.loads(results.read_text())["results"]["pears"]["exact_match,number"])


def test_chat_task(tmp_path: Path) -> None:
    arguments = f"model=demo-block,base_url={URL}/chat/completions"
    ended = evaluated(tmp_path, GENERATE, "local-chat-completions", arguments, "--apply_chat_template")
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert exact_match(tmp_path) >= 0.5


def test_completion_task(tmp_path: Path) -> None:
    ended = evaluated(tmp_path, GENERATE, "local-completions", COMPLETIONS)
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert 0 <= exact_match(tmp_path) <= 1


def test_log_likelihood_is_refused_by_name(tmp_path: Path) -> None:
    ended = evaluated(tmp_path, CHOOSE, "local-completions", f"{COMPLETIONS},max_retries=1")
    assert ended.returncode != 0
    assert '"param":"logprobs"' in ended.stdout + ended.stderr
