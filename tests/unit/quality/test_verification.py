"""The comparison of one's own figures with published ones, and GSM8K's rows from the hub."""

import json
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, urlparse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dilaserve.quality.benchmarks import download_gsm8k
from dilaserve.quality.published import PublishedFigures, published
from dilaserve.quality.verification import Verification, differences
from shared.errors import DilaserveError
from tests.support.http_server import http_server
from tests.support.present import present

KNOWN = PublishedFigures(source="a paper", tokens_per_step=3.25, accuracy=0.7915)


def own(**figures: float) -> Verification:
    fields = {"tokens_per_step": 3.25, "accuracy": 0.7915, "tokens_per_s": 1.0, "seconds": 1.0} | figures
    return Verification(questions=100, **fields)


@given(relative=st.floats(-0.099, 0.099), points=st.floats(-0.12, 0.12))
def test_figures_within_chance_do_not_differ(relative: float, points: float) -> None:
    assert differences(own(tokens_per_step=3.25 * (1 + relative), accuracy=0.7915 + points), KNOWN) == []


@pytest.mark.parametrize(
    ("figures", "text"),
    [({"tokens_per_step": 2.0}, "tokens per step differ by -38.5%"), ({"accuracy": 0.5}, "accuracy differs by -29.1")],
)
def test_figures_beyond_chance_differ(figures: dict[str, float], text: str) -> None:
    [found] = differences(own(**figures), KNOWN)
    assert text in found


def test_figures_are_known_by_model_benchmark_and_threshold() -> None:
    known = present(published("LLaDA-8B-Instruct", "gsm8k", 0.7))
    assert (known.tokens_per_step, known.accuracy) == (5.12, 0.7635)
    assert published("LLaDA-8B-Instruct", "gsm8k", 0.75) is None


class Hub(BaseHTTPRequestHandler):
    """Answers as the hub's row server, for a dataset of 250 rows; each row is its number."""

    def do_GET(self) -> None:
        query = {name: values[0] for name, values in parse_qs(urlparse(self.path).query).items()}
        first, count = int(query["offset"]), int(query["length"])
        numbers = range(first, min(first + count, 250)) if count <= 100 else ()
        rows = [{"row_idx": n, "row": {"question": f"{query['split']} {n}", "answer": f"#### {n}"}} for n in numbers]
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"features": [], "rows": rows}).encode())


@pytest.mark.parametrize(("wanted", "found"), [(3, 3), (230, 230), (300, 250)])
def test_the_first_questions_are_read_from_the_hub_page_by_page(wanted: int, found: int) -> None:
    with http_server(Hub) as url:
        questions = download_gsm8k(wanted, url)
    assert len(questions) == found
    for number, question in enumerate(questions):
        assert question.prompt.endswith(f"Question: test {number}\nAnswer:")
        assert question.prompt.count("Question: train") == 5
        assert question.is_correct(f"The answer is {number}")


def test_an_unreachable_hub_is_one_line_with_the_remedy() -> None:
    with pytest.raises(DilaserveError, match=r"cannot read GSM8K from .*; give a file or a directory by --data"):
        download_gsm8k(1, "http://127.0.0.1:1")
