"""The benchmarks: questions from files, and grading of replies."""

from pathlib import Path

import pytest

from dilaserve.quality.benchmarks import read_benchmark
from shared.errors import BadInput
from tests.support.benchmark_files import write_benchmark_files


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_benchmark_files(tmp_path_factory.mktemp("data"))


def test_gsm8k_prompts_have_five_examples_and_replies_are_graded(data: Path) -> None:
    question = read_benchmark("gsm8k", data)[0]
    assert question.prompt.count("Question: ") == 6
    assert question.prompt.endswith("Question: What is 2 + 0?\nAnswer:")
    assert question.is_correct(" 2 + 0 = 2\n#### 2")
    assert not question.is_correct(" 2 + 0 = 3\n#### 3")


def test_the_examples_are_reproducible(data: Path) -> None:
    prompts = [[question.prompt for question in read_benchmark("gsm8k", data)] for _ in range(2)]
    assert prompts[0] == prompts[1]


def test_mmlu_pro_prompts_list_the_options_and_replies_are_graded(data: Path) -> None:
    question = read_benchmark("mmlu-pro", data)[0]
    assert "about math" in question.prompt
    assert "A. 1\nB. 2\nC. 3\nAnswer: Let's think step by step." in question.prompt
    assert question.is_correct("So the answer is (B).")
    assert not question.is_correct("So the answer is (C).")


def test_mbpp_leaves_out_the_test_part_and_repeats_questions_three_times(data: Path) -> None:
    questions = read_benchmark("mbpp", data)
    assert len(questions) == 3 * 4  # of the ids 1 to 4 and 11, without 11
    assert questions[0].prompt.count("[BEGIN]") == 4
    assert questions[0].prompt.endswith("assert f1(1) == 2\n[BEGIN]\n")
    assert questions[0].is_correct("def f1(x):\n    return x + 1\n[DONE]")
    assert not questions[0].is_correct("def f1(x):\n    return x\n[DONE]")


@pytest.mark.parametrize(("name", "file"), [("gsm8k", "gsm8k_t"), ("mmlu-pro", "mmlu_pro_500"), ("mbpp", "mbpp.jsonl")])
def test_a_missing_file_is_reported(tmp_path: Path, name: str, file: str) -> None:
    with pytest.raises(BadInput, match=f"{tmp_path}.*{file}"):
        read_benchmark(name, tmp_path)


def test_an_invalid_file_is_reported(data: Path, tmp_path: Path) -> None:
    (tmp_path / "mbpp.jsonl.gz").write_bytes((data / "mmlu_pro_500.jsonl.gz").read_bytes())
    with pytest.raises(BadInput, match=r"mbpp\.jsonl\.gz: .*task_id"):
        read_benchmark("mbpp", tmp_path)
