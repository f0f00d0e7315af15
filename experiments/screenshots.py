"""Take the screenshots of the console: a live cluster under load in a headless Chromium.

python -m experiments.screenshots --out docs/images
"""

import shutil
import subprocess
import sys
import tempfile
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from playwright.sync_api import Browser, Page, expect, sync_playwright

from dilaserve.stack.up_options import DEMO_MODEL
from experiments.live_cluster import live_cluster

LIMIT_S = 60.0
LOAD_S = 45  # long enough to fill the charts
WIDE, NARROW = {"width": 1280, "height": 900}, {"width": 390, "height": 844}


def find_chromium() -> str | None:
    """The path of the program, or None."""
    return shutil.which("chromium") or shutil.which("google-chrome")


def main() -> None:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    parser.add_argument("--url", help="use this gateway, not a new cluster")
    options = parser.parse_args()
    program = find_chromium()
    if program is None:
        parser.error("needs Chromium: apt install chromium")
    options.out.mkdir(parents=True, exist_ok=True)
    if options.url:
        take_all(options.url, options.out, program)
    else:
        with live_cluster("--slots", 4, "--instances", "2x1,1x2") as cluster:
            take_all(cluster.url, options.out, program)


def take_all(url: str, out: Path, program: str) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        with page(browser, url, "light", WIDE) as wide:
            denoise(wide)
            save(wide, out / "playground.png", whole=True)
        with page(browser, url, "dark", NARROW) as narrow:
            denoise(narrow)
            narrow.locator("[data-run=A]").scroll_into_view_if_needed()
            save(narrow, out / "playground-narrow.png")
        with page(browser, f"{url}/#cluster", "dark", WIDE) as cluster, load(url):
            cluster.wait_for_timeout(LOAD_S * 900)
            save(cluster, out / "cluster.png", whole=True)
        with page(browser, f"{url}/#requests/{most_varied(url)}", "light", WIDE) as request:
            expect(request.get_by_role("region", name="Steps")).to_be_visible()
            request.wait_for_timeout(500)  # the chart draws with the next frame
            save(request, out / "request.png")
        browser.close()


@contextmanager
def page(browser: Browser, url: str, theme: str, size: dict[str, int]) -> Iterator[Page]:
    """Open a page at this URL."""
    opened = browser.new_page(color_scheme="dark" if theme == "dark" else "light", reduced_motion="reduce")
    opened.set_viewport_size({"width": size["width"], "height": size["height"]})
    opened.set_default_timeout(LIMIT_S * 1000)
    opened.goto(url)
    expect(opened.locator("#status")).to_have_text("Ready", timeout=LIMIT_S * 1000)
    yield opened
    opened.close()


def denoise(playground: Page) -> None:
    """Run both, then show the step of A at 80 %."""
    playground.get_by_role("button", name="Run both").click()
    expect(playground.locator("#comparison")).not_to_be_empty(timeout=LIMIT_S * 1000)
    steps = playground.get_by_label("Step shown of run A")
    steps.fill(str(int(steps.get_attribute("max") or 0) * 4 // 5))


@contextmanager
def load(url: str) -> Iterator[None]:
    """Send the demo model's held-out problems for LOAD_S."""
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "dilaserve", "bench", "--url", url, "--requests", DEMO_MODEL / "heldout.jsonl"]
        command += ["--rate", 8, "--duration", LOAD_S, "--slo", 0.5, "--out", f"{directory}/result.json"]
        process = subprocess.Popen([str(part) for part in command], stdout=subprocess.DEVNULL)
        yield
        process.wait()


def most_varied(url: str) -> str:
    """The id of the request whose steps used the most thresholds."""
    listed = httpx.get(f"{url}/v1/requests", params={"limit": 200}).json()["data"]

    def thresholds(name: str) -> int:
        steps = httpx.get(f"{url}/v1/requests/{name}").json()["steps"]
        return len({step["threshold"] for step in steps})

    return str(max((request["id"] for request in listed if request["status"] == "completed"), key=thresholds))


def save(shown: Page, path: Path, *, whole: bool = False) -> None:
    shown.screenshot(path=path, full_page=whole)
    print(f"{path}: {path.stat().st_size // 1024} KiB")


if __name__ == "__main__":
    main()
