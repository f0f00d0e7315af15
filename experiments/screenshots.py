"""Take the screenshots of the console at 1280 and 390 px: a live cluster under load in a headless Chromium.

python -m experiments.screenshots --out docs/images
"""

import shutil
import subprocess
import sys
import tempfile
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import httpx
from playwright.sync_api import Browser, Page, expect, sync_playwright

from dilaserve.stack.up_options import DEMO_MODEL
from experiments.live_cluster import live_cluster

LIMIT_S = 60.0
LOAD_S = 45  # long enough to fill the charts


@dataclass(frozen=True, slots=True)
class Size:
    """A window, in pixels. The narrow one has the dark theme, so that the pictures show both themes."""

    suffix: str
    width: int
    height: int
    theme: Literal["light", "dark"]


WIDE, NARROW = Size("", 1280, 900, "light"), Size("-narrow", 390, 844, "dark")
SIZES = (WIDE, NARROW)


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
        for size in SIZES:
            with page(browser, url, size) as playground:
                denoise(playground)
                if size is NARROW:
                    playground.locator("[data-run=A]").scroll_into_view_if_needed()
                save(playground, out, "playground", size)
        with load(url), ExitStack() as pages:
            views = "cluster", "requests"
            opened = [(view, size, page(browser, f"{url}/#{view}", size)) for view in views for size in SIZES]
            loaded = [(view, size, pages.enter_context(each)) for view, size, each in opened]
            loaded[0][-1].wait_for_timeout(LOAD_S * 900)
            for view, size, each in loaded:
                save(each, out, view, size)
        for view in (f"requests/{most_varied(url)}", "plans"):
            for size in SIZES:
                with page(browser, f"{url}/#{view}", size) as shown:
                    if view != "plans":
                        expect(shown.get_by_role("region", name="Steps")).to_be_visible()
                    shown.wait_for_timeout(500)  # the chart draws with the next frame
                    save(shown, out, "plans" if view == "plans" else "request", size)
        browser.close()


@contextmanager
def page(browser: Browser, url: str, size: Size) -> Iterator[Page]:
    """Open a page at this URL."""
    opened = browser.new_page(color_scheme=size.theme, reduced_motion="reduce")
    opened.set_viewport_size({"width": size.width, "height": size.height})
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


def save(shown: Page, out: Path, name: str, size: Size) -> None:
    """Save the picture of a page, whole if it is wide and has a fixed length."""
    if size is WIDE:
        shown.evaluate("scrollTo(0, 0)")
    shown.mouse.move(0, 0)
    path = out / f"{name}{size.suffix}.png"
    shown.screenshot(path=path, full_page=size is WIDE and name in ("playground", "cluster"))
    print(f"{path}: {path.stat().st_size // 1024} KiB")


if __name__ == "__main__":
    main()
