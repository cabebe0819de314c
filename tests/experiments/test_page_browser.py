"""The page in a real browser: pixels, keys, pointers; from a file and live."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from adcs.experiments.comparison import compare
from adcs.experiments.page import page_data
from adcs.experiments.page.document import document
from adcs.experiments.page.source import RunSource
from adcs.run_folder import RunFolder

playwright_api = pytest.importorskip("playwright.sync_api", reason="needs playwright")

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium")
if CHROMIUM is None:
    pytest.skip("needs chromium, in PATH or named by CHROMIUM", allow_module_level=True)

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
HOSTILE = "</script><img src=x onerror=\"document.title='broken'\">"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "run"
    compare(
        ["Uniform", "ADCS", "LiveADCS"],
        data="synthetic:per_cluster=40",
        clients=10,
        m=4,
        rounds=60,
        eval_every=5,
        lr=0.05,
        seeds=3,
        out=path,
        jobs=1,
        progress=False,
    )
    return path


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield found
        found.close()


class Opened:
    """A page with what went wrong on it, and what it asked for."""

    def __init__(self, browser: Any, address: str, **options: Any) -> None:
        self.context = browser.new_context(
            viewport={"width": options.pop("width", 1200), "height": 900}, **options
        )
        self.page = self.context.new_page()
        self.problems: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.problems.append(message.text))
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(address)
        self.page.wait_for_selector("html[data-drawn]")

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *_: object) -> None:
        self.context.close()

    def picture(self, selector: str) -> bytes:
        found: bytes = self.page.locator(selector).screenshot()
        return found

    def colours(self, selector: str) -> int:
        """How many colours a canvas has."""
        script = """(canvas) => {
            const pen = canvas.getContext("2d"), seen = new Set();
            const p = pen.getImageData(0, 0, canvas.width, canvas.height).data;
            for (let i = 0; i < p.length; i += 4)
                if (p[i + 3]) seen.add((p[i] << 16) | (p[i + 1] << 8) | p[i + 2]);
            return seen.size;
        }"""
        count: int = self.page.locator(selector).evaluate(script)
        return count

    def wait(self, selector: str, text: str) -> None:
        """Wait until an element has a text."""
        where = playwright_api.expect(self.page.locator(selector))
        where.to_contain_text(text, timeout=60_000)

    def text(self, selector: str) -> str:
        found: str = self.page.locator(selector).inner_text()
        return found


CANVASES = ("#plane canvas", "#kernel canvas", "#participation canvas", "#curves canvas >> nth=0")


def test_the_file_opens_and_draws_everything(run: Path, browser: Any) -> None:
    address = (run / "report.html").as_uri()
    with Opened(browser, address) as opened:
        for canvas in CANVASES:
            assert opened.colours(canvas) > 10, canvas
        assert opened.page.locator("#curves canvas").count() == 3
        assert opened.text("#verdict").startswith("Use ") or "is enough" in opened.text("#verdict")
        assert opened.page.locator("#tables table").count() == 2
        assert opened.page.locator("#costs .bar").count() == 9
        assert "adcs compare --data" in opened.text("#settings pre")
        assert opened.problems == []
        assert opened.requests == [address]


def test_the_slider_moves_the_cohort_by_keys(run: Path, browser: Any) -> None:
    folder = RunFolder.open(run)
    with Opened(browser, (run / "report.html").as_uri()) as opened:
        page = opened.page
        page.select_option("#scheduler", label="ADCS")
        page.locator("#slider").focus()
        seen, pictures = {}, set()
        for _ in range(5):
            page.keyboard.press("ArrowLeft")
            words = re.match(r"Round ([\d,]+), ADCS", opened.text("#cohort p >> nth=0"))
            assert words is not None
            seen[int(words[1])] = opened.text("#cohort dd >> nth=0")
            pictures.add(opened.picture("#plane canvas"))
        assert len(seen) == len(pictures) == 5
        page.keyboard.press("Home")
        assert opened.text("#round") == "0 of 60"
        page.keyboard.press("End")
        assert opened.text("#round") == "60 of 60"
        for record in folder.records():
            if (record["scheduler"], record["seed"]) == ("ADCS", 0):
                done = record["server_round"]
                if done in seen:
                    inside = [str(i) for i, w in enumerate(record["cohort_weights"]) if w]
                    assert seen[done].split(", ") == inside
        assert opened.problems == []


def test_hover_and_picker_say_why(run: Path, browser: Any) -> None:
    with Opened(browser, (run / "report.html").as_uri()) as opened:
        page = opened.page
        page.select_option("#scheduler", label="ADCS")
        plane = page.locator("#plane canvas")
        plane.scroll_into_view_if_needed()
        box = plane.bounding_box()
        said = set()
        for i in range(0, int(box["width"]), 12):
            for j in range(0, int(box["height"]), 12):
                page.mouse.move(box["x"] + i, box["y"] + j)
                if page.locator("#tip").is_visible():
                    said.add(opened.text("#tip").splitlines()[0])
            if len(said) > 6:
                break
        assert any(": selected" in text for text in said)
        assert any(re.search(r": left out (for its quality|as redundant)", t) for t in said), said
        # The same by keys: a client is picked on the focused figure.
        plane.focus()
        page.keyboard.press("ArrowRight")
        first = opened.text("#why")
        page.keyboard.press("ArrowRight")
        assert first.startswith("Client 0")
        assert opened.text("#why").startswith("Client 1")
        assert page.locator("#client").input_value() == "1"
        page.select_option("#client", "4")
        assert opened.text("#why").startswith("Client 4")


def test_figures_are_linked(run: Path, browser: Any) -> None:
    with Opened(browser, (run / "report.html").as_uri()) as opened:
        page = opened.page
        page.locator("#curves canvas >> nth=0").click(position={"x": 120, "y": 100})
        done = int(opened.text("#round").split()[0])
        assert 0 < done < 50
        assert opened.text("#cohort p >> nth=0").startswith(f"Round {done}, ")
        page.locator("#tables tr", has_text="Uniform").first.click()
        assert "Uniform" in opened.text("#cohort p >> nth=0")
        assert page.locator('#legend button[aria-pressed="true"]').inner_text() == "Uniform"
        page.locator("#kernel canvas").click(position={"x": 30, "y": 30})
        assert page.locator("#client").input_value() != ""
        before = opened.picture("#curves canvas >> nth=0")
        page.select_option("#axis", "bytes")
        assert opened.picture("#curves canvas >> nth=0") != before
        page.locator("#seeds").check()
        assert opened.problems == []


def test_the_tip_of_a_curve_names_the_evaluation_of_its_values(run: Path, browser: Any) -> None:
    with Opened(browser, (run / "report.html").as_uri()) as opened:
        canvas = opened.page.locator("#curves canvas >> nth=0")
        for x in (70, 123, 201):
            canvas.hover(position={"x": x, "y": 100})
            first = opened.text("#tip").splitlines()[0]
            assert re.fullmatch(r"round \d+", first), first
            assert int(first.split()[1]) % 5 == 0
        assert opened.problems == []


def test_the_colour_scale_covers_no_axis(run: Path, browser: Any, tmp_path: Path) -> None:
    """Without a kernel clients are drawn between axes."""
    source = RunSource(RunFolder.open(run))
    source.read()
    data = json.loads(json.dumps(page_data(source)))
    for view in data["views"].values():
        view["plane"] = view["kernel"] = None
    path = tmp_path / "plain.html"
    path.write_text(document(data, "plain"), encoding="utf-8")
    corner = """(canvas) => {
        const ratio = canvas.height / canvas.clientHeight, rows = canvas.height - 80 * ratio;
        const pen = canvas.getContext("2d"), from = canvas.width - 130 * ratio;
        return [...pen.getImageData(from, rows, 130 * ratio, 36 * ratio).data].join();
    }"""
    with Opened(browser, path.as_uri()) as opened:
        canvas = opened.page.locator("#plane canvas")
        before = canvas.evaluate(corner)
        assert len(set(before.split(","))) > 2  # ticks are there
        opened.page.select_option("#colour", "reason")
        assert canvas.evaluate(corner) == before


def test_every_figure_has_a_table(run: Path, browser: Any) -> None:
    with Opened(browser, (run / "report.html").as_uri()) as opened:
        summaries = opened.page.locator("figure details summary")
        assert summaries.count() == 6
        for i in range(6):
            summaries.nth(i).focus()
            opened.page.keyboard.press("Enter")
        rows = opened.page.locator("figure details table tbody")
        playwright_api.expect(rows).to_have_count(6)
        for i in range(6):
            assert rows.nth(i).locator("tr").count() >= 10
        for canvas in opened.page.locator("canvas").all():
            assert len(canvas.get_attribute("aria-label")) > 20


@pytest.mark.parametrize("width", [360, 390, 1200])
def test_a_phone_needs_no_sideways_scrolling(run: Path, browser: Any, width: int) -> None:
    with Opened(browser, (run / "report.html").as_uri(), width=width) as opened:
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
        for canvas in CANVASES:
            assert opened.colours(canvas) > 10


def test_dark_mode_and_print(run: Path, browser: Any, tmp_path: Path) -> None:
    address = (run / "report.html").as_uri()
    with Opened(browser, address, color_scheme="dark") as opened:
        background = "getComputedStyle(document.body).backgroundColor"
        assert opened.page.evaluate(background) == "rgb(15, 20, 26)"
        dark = opened.picture("#plane canvas")
        data = json.loads(opened.page.locator("#data").text_content() or "")
        swatch = "document.querySelector('#legend line').getAttribute('stroke')"
        bar = "document.querySelector('#costs .bar').style.background"
        assert opened.page.evaluate(swatch) == data["schedulers"][0]["dark"]
        dark_bar = opened.page.evaluate(bar)
        opened.page.locator("#theme").click()
        assert opened.page.evaluate(background) == "rgb(255, 255, 255)"
        assert opened.picture("#plane canvas") != dark
        assert opened.page.evaluate(swatch) == data["schedulers"][0]["colour"]
        assert opened.page.evaluate(bar) != dark_bar
        opened.page.locator("#theme").click()
        printed = opened.page.pdf(print_background=True)
        assert printed.startswith(b"%PDF")
        assert len(printed) > 50_000
        opened.page.emulate_media(media="print")
        assert not opened.page.locator("#controls").is_visible()
        assert "Click" not in opened.text("#curves-note")
        assert not opened.page.locator("#why").is_visible()  # "Point at a client ..."


def test_hostile_names_stay_text(run: Path, browser: Any, tmp_path: Path) -> None:
    source = RunSource(RunFolder.open(run))
    source.read()
    data = json.loads(json.dumps(page_data(source)))
    data["clients"]["names"] = [f"{HOSTILE}{i}" for i in range(10)]
    data["clients"]["group_names"] = [HOSTILE] * 20
    data["metric"]["name"] = HOSTILE
    data["title"] = data["verdict"][0] = HOSTILE
    for old in list(data["views"]):
        data["views"][old + HOSTILE] = data["views"].pop(old)
        data["curves"]["lines"][old + HOSTILE] = data["curves"]["lines"].pop(old)
    for scheduler in data["schedulers"]:
        scheduler["label"] += HOSTILE
    data["proposed"], data["curves"]["seeds"] = None, None
    path = tmp_path / "hostile.html"
    path.write_text(document(data, HOSTILE), encoding="utf-8")
    with Opened(browser, path.as_uri()) as opened:
        opened.page.select_option("#client", "3")
        for summary in opened.page.locator("figure details summary").all():
            summary.click()
        opened.page.locator("#plane canvas").hover()
        assert opened.page.locator("img").count() == 0
        assert opened.text("#title") == HOSTILE
        assert HOSTILE in opened.text("#why")
        assert opened.page.title() == HOSTILE
        assert opened.problems == []
        assert opened.requests == [path.as_uri()]


def test_any_name_is_shown_as_it_is_and_fits_a_phone(
    run: Path, browser: Any, tmp_path: Path
) -> None:
    source = RunSource(RunFolder.open(run))
    source.read()
    data = json.loads(json.dumps(page_data(source)))
    odd = ["$& $1 $`", "{similarity}", "😀 Zoë", "x" * 200]
    data["clients"]["names"] = [f"{odd[i % 4]}{i}" for i in range(10)]
    data["title"] = "y" * 300
    path = tmp_path / "odd.html"
    path.write_text(document(data, "odd"), encoding="utf-8")
    with Opened(browser, path.as_uri(), width=360) as opened:
        page = opened.page
        page.select_option("#scheduler", label="ADCS")
        for i in range(10):
            page.select_option("#client", str(i))
            assert opened.text("#why").startswith(f"Client {data['clients']['names'][i]}")
            assert page.evaluate("document.documentElement.scrollWidth") <= 360
        page.locator("#plane details summary").click()
        page.locator("#slider").focus()
        named = set()
        for _ in range(12):
            for text in page.locator("#plane details td:last-child").all_text_contents():
                found = re.search(r"(?:client|is) (\S.*?)(, which is selected)? \(similarity", text)
                named |= {found[1]} if found else set()
            page.keyboard.press("ArrowLeft")
        assert named
        assert named <= set(data["clients"]["names"])
        assert opened.problems == []


@pytest.mark.parametrize("width", [360, 1280])
def test_long_labels_and_sites_stay_in_their_place(
    run: Path, browser: Any, tmp_path: Path, width: int
) -> None:
    source = RunSource(RunFolder.open(run))
    source.read()
    data = json.loads(json.dumps(page_data(source)))
    label = "patient.py:Patient(patience=0.5, and_much_more=[1, 2, 3, 4, 5, 6, 7, 8, 9])"
    for cost in data["costs"]:
        cost["labels"] = [*cost["labels"][:-1], label]
        cost["values"] = [100.0, 50.0, 25.0]
        cost["texts"] = ["123,456,789", "999.99 MB", "1 s"]
    data["clients"]["group_names"] = ["z" * 100, *data["clients"]["group_names"][1:]]
    path = tmp_path / "long.html"
    path.write_text(document(data, "long"), encoding="utf-8")
    with Opened(browser, path.as_uri(), width=width) as opened:
        page = opened.page
        page.select_option("#colour", "group")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        for part in ("#costs > div", "#plane .key li"):
            for box in page.locator(part).all():
                assert box.evaluate("(e) => e.scrollWidth <= e.clientWidth + 1"), part
        figure = page.locator("#plane").bounding_box()
        for mark in page.locator("#plane .key svg").all():
            assert mark.bounding_box()["width"] == 14
        for name in page.locator("#plane .key span").all():
            box = name.bounding_box()
            assert box["x"] + box["width"] <= figure["x"] + figure["width"] + 1
        widths = [bar.bounding_box()["width"] for bar in page.locator("#costs .bar").all()[:3]]
        assert widths[0] > 40
        assert widths[0] / widths[1] == pytest.approx(2, rel=0.02)
        assert widths[0] / widths[2] == pytest.approx(4, rel=0.04)


def test_tables_are_whole_on_paper(run: Path, browser: Any, tmp_path: Path) -> None:
    source = RunSource(RunFolder.open(run))
    source.read()
    data = json.loads(json.dumps(page_data(source)))
    for one in data["tables"]:
        one["rows"][-1][0] = "patient.py:Patient(patience=0.5)"
        one["rows"] = [
            [row[0], *["0.344 [0.000, 0.469], p = 0.101"] * (len(row) - 1)] for row in one["rows"]
        ]
    path = tmp_path / "paper.html"
    path.write_text(document(data, "paper"), encoding="utf-8")
    with Opened(browser, path.as_uri(), width=688) as opened:  # A4 less its margins
        opened.page.emulate_media(media="print")
        for table in opened.page.locator("#tables table").all():
            assert table.evaluate("(t) => t.offsetWidth <= t.parentElement.clientWidth")
            for cell in table.locator("th, td").all():
                assert cell.evaluate("(c) => c.scrollWidth <= c.clientWidth + 1")


def test_the_live_page_follows_a_run(
    run: Path, browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("starlette")
    pytest.importorskip("uvicorn")
    from adcs.experiments.config import Experiment
    from adcs.experiments.runner import create_run
    from tests.experiments.test_watch import SETTINGS, run_to, serving

    folder = create_run(tmp_path / "run", Experiment.of(**SETTINGS))
    run_to(folder, 13, monkeypatch)
    with serving(folder) as address, Opened(browser, address) as opened:
        opened.wait("#round", "10 of")
        assert "In progress" in opened.text("#live")
        plane = opened.picture("#plane canvas")
        run_to(folder, 40, monkeypatch)
        started = time.monotonic()
        opened.wait("#live", "Finished")
        opened.wait("#round", "30 of")
        assert time.monotonic() - started < 30
        assert opened.picture("#plane canvas") != plane
        assert opened.problems == []
        assert {url.partition("?")[0].removeprefix(address) for url in opened.requests} == {
            "",
            "events",
            "data.json",
        }


def test_the_live_page_survives_a_restart_of_its_server(
    browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("starlette")
    pytest.importorskip("uvicorn")
    from adcs.experiments.config import Experiment
    from adcs.experiments.runner import create_run
    from tests.experiments.test_watch import SETTINGS, run_to, serving

    folder = create_run(tmp_path / "run", Experiment.of(**SETTINGS))
    run_to(folder, 13, monkeypatch)
    with serving(folder) as address:
        newest, earlier = Opened(browser, address), Opened(browser, address)
        earlier.page.locator("#slider").focus()
        earlier.page.keyboard.press("Home")
        earlier.page.select_option("#client", "4")
    with newest, earlier:
        for opened in (newest, earlier):
            opened.wait("#live", "is lost")
        run_to(folder, 40, monkeypatch)
        with serving(folder, port=int(address.rpartition(":")[2].strip("/"))):
            newest.wait("#live", "Finished")
            newest.wait("#round", "30 of")
            # Who looks at an earlier round, or at a client, stays there.
            earlier.wait("#tables", "Uniform")
            slider = playwright_api.expect(earlier.page.locator("#slider"))
            slider.to_have_attribute("max", "3", timeout=60_000)
            assert earlier.text("#round").startswith("0 of")
            assert earlier.page.locator("#client").input_value() == "4"


def test_the_live_page_fetches_again_what_it_could_not_get(
    browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("starlette")
    pytest.importorskip("uvicorn")
    from adcs.experiments.config import Experiment
    from adcs.experiments.runner import create_run
    from tests.experiments.test_watch import SETTINGS, run_to, serving

    folder = create_run(tmp_path / "run", Experiment.of(**SETTINGS))
    run_to(folder, 13, monkeypatch)
    with serving(folder) as address, Opened(browser, address) as opened:
        asked: list[Any] = []

        def once_bad(route: Any) -> None:
            asked.append(route)
            if len(asked) == 1:
                route.fulfill(status=502, body="bad gateway")
            else:
                route.continue_()

        opened.page.route("**/data.json", once_bad)
        run_to(folder, 40, monkeypatch)
        opened.wait("#round", "30 of")
        assert len(asked) >= 2
