"""The documents whose commands the tests run, and the commands that other tests run."""

from tests.support.shell_blocks import ROOT, Block, commands

RUN = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

# A command as the documents show it, and the test that runs it (with other arguments).
ELSEWHERE = {
    "dilaserve doctor": ("tests/integration/test_command_line.py::test_doctor_reports_no_problem_if_a_stack_can_start"),
    "dilaserve profile --model models/demo --tp 1,2 --out PROFILE.csv": (
        "tests/integration/test_profile.py::test_the_command_writes_the_profile_to_a_file_and_the_database"
    ),
    "dilaserve plan --workload workload.json --profile experiments/data/h100-llada8b.csv --out plan.json "
    "--min-threshold 0.85 --min-attainment 0.99": (
        "tests/unit/dilaserve/test_plan.py::test_the_plan_is_that_of_the_smallest_cluster_that_suffices"
    ),
    "dilaserve simulate --workload gsm8k --rps 6 --slo 15 --profile experiments/data/h100-llada8b.csv "
    "--steps experiments/data/steps-llada-gsm8k.csv --cluster 8x1": (
        "tests/unit/dilaserve/test_simulate.py::test_a_trace_is_served_and_reported"
    ),
    "dilaserve simulate --from-database --last 1h --profile PROFILE.csv --cluster 2x1 --cluster 4x1 "
    "--policy dilaserve --policy fixed --threshold 0.9 --threshold 0.7 --report report.md --plot report.png": (
        "tests/integration/test_profile.py::test_recorded_requests_run_under_each_policy_and_cluster"
    ),
    "dilaserve train-predictor --model models/demo --prompts models/demo/heldout.jsonl --out predictor": (
        "tests/integration/test_tune.py::test_a_loadable_predictor_is_written_and_its_errors_are_reported"
    ),
    "dilaserve tune --model models/demo --prompts models/demo/heldout.jsonl --requests 12 --held-out 4 "
    "--max-tokens 128 --repeats 1 --out tuned": (
        "tests/integration/test_tune.py::test_the_results_are_written_with_a_report_and_the_command_that_serves_them"
    ),
    "dilaserve up --port 8000 --reconfigure --profile PROFILE.csv": (
        "tests/e2e/test_reconfigure.py::test_more_load_turns_one_tp_2_into_two_tp_1_and_less_turns_them_back"
    ),
}


def exists(test: str) -> bool:
    """Whether the test FILE::NAME exists."""
    path, _, name = test.partition("::")
    return (ROOT / path).is_file() and f"def {name}(" in (ROOT / path).read_text()


def to_run(block: Block) -> bool:
    """Whether to run the block with the others of its document. Raises: AssertionError if only a part is to run."""
    if block.reason is not None:
        return False
    left = [command.text in ELSEWHERE for command in commands(block)]
    assert all(left) or not any(left), f"{block.where}: other tests run only some of these commands; split the block"
    return not (left and all(left))
