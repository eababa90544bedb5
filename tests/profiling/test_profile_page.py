"""The page of astitch-profile: what it says, that it needs nothing else, and how it behaves in a real browser.

Debian's chromium, or one that CHROMIUM names; where there is none the tests that need it are skipped and say so.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import astitch
from astitch.profiling.figures import draw_timeline
from astitch.profiling.report import Ablation, Event, Kernel, Refusal, Report, Side

CHROMIUM = (
    os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
)


def block(x: jax.Array, w: jax.Array, gain: jax.Array) -> jax.Array:
    """A softmax, a product, and the gradient of a norm's gain, which meets at a barrier of the grid."""
    e = jnp.exp(x - x.max(-1, keepdims=True))
    y = (e / e.sum(-1, keepdims=True)) @ w

    def norm(gain: jax.Array) -> jax.Array:
        centred = y - y.mean(-1, keepdims=True)
        scaled = centred * jax.lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-5) * gain
        return jnp.square(scaled).sum()

    return jax.grad(norm)(gain)


@pytest.fixture(scope="module")
def report() -> Report:
    shapes = (4096, 512), (512, 1024), (1024,)
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    found = astitch.profile(block, *arguments, gpu="h100")
    # XLA's side as where its compiler is installed, so that the page is the same everywhere.
    theirs = tuple(
        Kernel(
            f"loop_fusion_{n}", "memory", 1.0, bound_us=2.0 + n, limit="DRAM", source=("a.py:3",)
        )
        for n in range(4)
    )
    return replace(found, xla=Side("xla", kernels=theirs))


@pytest.fixture(scope="module")
def page_file(report: Report, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("page") / "report.html"
    file.write_text(report.to_html(), "utf-8")
    return file


# ---- without a browser -------------------------------------------------------------------------------------------

VOID = {"meta", "link", "br", "img", "input", "hr"}


class Tags(HTMLParser):
    """Checks that tags are closed in order; keeps ids and what would be fetched."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        named = dict(attrs)
        if named.get("id"):
            self.ids.append(str(named["id"]))
        self.fetched += [str(named[n]) for n in ("src", "href") if n in named]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, (tag, self.open[-5:], self.getpos())
        self.open.pop()


def test_the_page_is_well_formed_and_fetches_nothing(page_file: Path) -> None:
    text = page_file.read_text("utf-8")
    tags = Tags()
    tags.feed(text)
    assert tags.open == []
    assert len(tags.ids) == len(set(tags.ids))
    assert all(link.startswith("#") and link[1:] in tags.ids for link in tags.fetched)
    assert not re.search(r"https?://|@import|url\(", text)


def test_names_from_a_module_are_escaped(report: Report) -> None:
    evil = '<script>alert(1)</script>"onmouseover="x'
    kernels = tuple(
        replace(k, name=evil, source=(evil,)) if k.stitch is None else k for k in report.xla.kernels
    )
    bad = replace(report, target=evil, xla=replace(report.xla, kernels=kernels), notes=(evil,))
    tags = Tags()
    tags.feed(bad.to_html())
    assert tags.open == []
    assert "<script>alert" not in bad.to_html()
    assert '"onmouseover=' not in bad.to_html()


def test_a_notebook_shows_the_page_in_a_frame(report: Report) -> None:
    frame = report._repr_html_()
    assert frame.startswith("<iframe") and frame.count("<") == 2


def test_thousands_of_launches_are_drawn_in_few_strokes(report: Report) -> None:
    events = tuple(Event(f"k{n}", "memory", 3.0 * n, 1.0) for n in range(20_000))
    sides = {"xla": Side("xla", timeline=events), "astitch": Side("astitch")}
    picture = draw_timeline(replace(report, **sides))
    assert "XLA: 20000 launches" in picture
    assert picture.count("<rect") < 1200 and len(picture) < 300_000
    told = [int(n) for n in re.findall(r"(\d+) launches in", picture)]
    assert sum(told) == 20_000


def test_texts_that_are_alike_are_shown_once(report: Report) -> None:
    kernel = next(k for k in report.astitch.kernels if k.stitch)
    assert kernel.stitch is not None
    cuda = kernel.stitch.cuda.replace(kernel.name, "stitch_9")
    twin = replace(kernel, name="stitch_9", stitch=replace(kernel.stitch, cuda=cuda))
    kernels = (*report.astitch.kernels, twin)
    text = replace(report, astitch=replace(report.astitch, kernels=kernels)).to_html()
    assert text.count("The same as of") == 1
    assert text.count('<pre class="code">') == report.to_html().count('<pre class="code">')


def test_counters_have_a_table_of_their_own(report: Report) -> None:
    counted = [replace(k, counters={"instructions": 1234.0}) for k in report.xla.kernels[:2]]
    kernels = (*counted, *report.xla.kernels[2:])
    text = replace(report, xla=replace(report.xla, kernels=kernels)).to_html()
    assert text.count("<td>1,234</td>") == 2
    assert 'id="counters"' in text and 'id="counters"' not in report.to_html()


def test_a_program_without_a_stitch_op_has_a_page_too() -> None:
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((64, 32), (32, 64))]
    found = astitch.profile(jnp.matmul, *arguments, gpu="h100")
    assert all(row.us == 0 for row in found.ablation if row.us is not None)
    tags = Tags()
    tags.feed(found.to_html())
    assert tags.open == [] and "program" in tags.ids


def test_watts_are_no_megahertz(report: Report) -> None:
    clocks = {"SM clock": 1980.0, "power limit (W)": 700.0}
    text = replace(report, machine=replace(report.machine, clocks=clocks)).to_html()
    assert "<dd>1,980 MHz</dd>" in text and "<dt>power limit (W)</dt><dd>700</dd>" in text


def test_many_refusals_are_folded(report: Report) -> None:
    many = tuple(Refusal(f"a{n}", "b", "no", ()) for n in range(30))
    text = replace(report, refusals=many).to_html()
    assert "<summary>18 more</summary>" in text and "<code>a29</code>" in text


def test_what_is_not_known_is_not_drawn(report: Report) -> None:
    bare = replace(
        report,
        xla=Side("xla", missing="XLA's compiler is not installed"),
        ablation=(Ablation("XLA", None, None, 0, "projected", ""),),
    )
    text = bare.to_html()
    assert "XLA&#x27;s compiler is not installed" in text
    assert "not known" in text
    tags = Tags()
    tags.feed(replace(bare, ablation=(), refusals=(), steps=()).to_html())
    assert not {"ablation", "program"} & set(tags.ids)
    assert all(link[1:] in tags.ids for link in tags.fetched)


# ---- in a browser ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("no browser: install Debian's chromium, or set CHROMIUM")
    api = pytest.importorskip("playwright.sync_api", reason="no browser: pip install playwright")
    with api.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def page(browser: Any, page_file: Path) -> Iterator[Any]:
    """The report, offline, in a context of its own; what the script gets wrong fails the test."""
    context = browser.new_context(offline=True, viewport={"width": 1280, "height": 900})
    opened = context.new_page()
    faults: list[str] = []
    opened.on("pageerror", lambda error: faults.append(str(error)))
    opened.on("console", lambda m: faults.append(m.text) if m.type == "error" else None)
    opened.goto(page_file.as_uri())
    yield opened
    context.close()
    assert faults == []


def focused(page: Any, name: str) -> str | None:
    found: str | None = page.evaluate(f"document.activeElement.getAttribute('{name}')")
    return found


def test_everything_is_on_the_page(page: Any) -> None:
    titles = page.locator("main h2").all_inner_texts()
    assert [title.split(" (")[0] for title in titles] == [
        "Where the time goes",
        "Layers",
        "Kernels",
        "Roofline",
        "The stitched program",
        "Timeline",
        "Memory over one call",
        "Ablation",
        "Refusals",
        "Source",
        "Machine and method",
    ]
    assert page.locator(".card").count() == 5
    assert page.locator("svg.figure").count() == 6
    assert page.locator(".dot").count() >= 2
    assert page.locator(".dot.xla").count() == 0  # without a time


def test_the_program_is_walked_and_opened_by_keys(page: Any) -> None:
    steps = page.locator(".step")
    steps.first.focus()
    page.keyboard.press("End")
    assert focused(page, "data-step") == str(steps.count() - 1)
    page.keyboard.press("Home")
    page.keyboard.press("ArrowDown")
    second = focused(page, "data-step")
    assert second not in (None, "0")
    while focused(page, "aria-controls") is None:
        page.keyboard.press("ArrowRight")
    panel = str(focused(page, "aria-controls"))
    page.keyboard.press("Escape")  # what was open at first
    assert page.locator(".panel:visible").count() == 0
    page.keyboard.press("Enter")
    opened = page.locator(f"#{panel}")
    assert opened.is_visible()
    assert focused(page, "id") == panel
    assert page.locator(".step[aria-expanded=true]").get_attribute("aria-controls") == panel
    page.keyboard.press("Escape")
    assert opened.is_hidden()
    assert focused(page, "aria-controls") == panel  # back where it was opened


def test_a_stitch_op_tells_dominants_schemes_barriers_and_cuda(page: Any) -> None:
    for panel in page.locator(".panel").all():
        panel.evaluate("p => p.hidden = false")
    assert page.locator(".value .crown").count() >= 2
    schemes = {
        c.split()[-1] for c in page.locator(".value").evaluate_all("v => v.map(e => e.className)")
    }
    assert {"regional", "global"} <= schemes
    assert page.locator(".barrier.grid").count() >= 1
    code = page.locator(".panel .code").first
    assert code.is_hidden()
    page.get_by_text("Generated CUDA").first.click()
    assert code.is_visible()
    assert code.locator("span").count() > 20  # coloured
    assert "__global__" in code.inner_text()


def test_kernels_are_sorted_and_filtered(page: Any) -> None:
    names = page.locator("#kernel-table tbody tr:visible td:nth-child(2)")
    before = names.all_inner_texts()
    page.locator("#kernel-table th button", has_text="kernel").click()
    assert names.all_inner_texts() == sorted(before, reverse=True)
    page.locator("#kernel-table th button", has_text="kernel").press("Enter")
    assert names.all_inner_texts() == sorted(before)
    head = page.locator("#kernel-table th", has_text="kernel")
    assert head.get_attribute("aria-sort") == "ascending"
    page.locator("#kernel-table th button", has_text="time").click()
    assert names.first.inner_text().startswith("stitch")  # what is not known comes last
    page.locator(".filter", has_text="XLA").press("Space")
    assert all(not name.startswith("loop_fusion") for name in names.all_inner_texts())
    assert len(names.all_inner_texts()) == len(before) - 4


def test_of_many_kernels_the_first_are_shown(browser: Any, report: Report, tmp_path: Path) -> None:
    kernels = tuple(Kernel(f"k{n}", "memory", 1.0, bound_us=100.0 - n) for n in range(60))
    file = tmp_path / "many.html"
    file.write_text(replace(report, xla=Side("xla", kernels=kernels)).to_html(), "utf-8")
    context = browser.new_context(offline=True)
    opened = context.new_page()
    opened.goto(file.as_uri())
    rows = opened.locator("#kernel-table tbody tr")
    visible = opened.locator("#kernel-table tbody tr:visible")
    assert visible.count() == 40
    more = opened.locator("#all-kernels")
    assert more.inner_text() == f"Show {rows.count() - 40} more"
    more.press("Enter")
    assert visible.count() == rows.count() and more.is_hidden()
    context.close()


def test_a_kernel_in_the_table_opens_its_panel(page: Any) -> None:
    button = page.locator(".open").last
    page.keyboard.press("Escape")
    button.click()
    assert page.locator(f"#{button.get_attribute('data-opens')}").is_visible()


def test_tips_come_with_the_mouse_and_with_the_focus(page: Any) -> None:
    tip = page.locator("#tip")
    assert tip.is_hidden()
    dot = page.locator(".dot").first
    dot.focus()
    assert "speed of light" in tip.inner_text()
    page.keyboard.press("Escape")
    assert tip.is_hidden()
    page.locator(".part").first.hover()
    assert "XLA" in tip.inner_text()
    box = tip.bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= 1280


def test_a_timeline_is_walked_by_arrow_keys(page: Any) -> None:
    page.locator(".lane").last.focus()
    page.keyboard.press("ArrowRight")
    first = page.locator("#tip").inner_text()
    page.keyboard.press("ArrowRight")
    assert page.locator("#tip").inner_text() != first
    page.keyboard.press("Home")
    assert page.locator("#tip").inner_text() == first
    assert page.locator(".event.lit").count() == 1


def luminance(page: Any, selector: str, name: str) -> float:
    colour = page.locator(selector).first.evaluate(f"e => getComputedStyle(e).{name}")
    parts = [float(x) / 255 for x in re.findall(r"[\d.]+", colour)[:3]]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_schemes_can_be_read(page: Any, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)
    back = luminance(page, ".card", "backgroundColor")
    assert (back < 0.1) == (scheme == "dark")
    for selector in (".card p", ".note", "nav a", ".side.xla", ".side.astitch", ".chip", "td"):
        text = luminance(page, selector, "color")
        contrast = (max(text, back) + 0.05) / (min(text, back) + 0.05)
        assert contrast >= 4.5, (selector, contrast)
    page.locator("#theme").click()
    assert (luminance(page, ".card", "backgroundColor") < 0.1) != (scheme == "dark")


def test_paper_has_no_buttons_and_a_light_ground(page: Any) -> None:
    page.emulate_media(media="print", color_scheme="dark")
    assert luminance(page, "body", "backgroundColor") == 1.0
    assert page.locator(".filters").is_hidden() and page.locator("nav").is_hidden()
    assert page.locator("#kernel-table").is_visible()
    assert len(page.pdf()) > 20_000


def test_paper_shows_what_the_screen_folds(browser: Any, report: Report, tmp_path: Path) -> None:
    kernels = tuple(Kernel(f"k{n}", "memory", 1.0, bound_us=100.0 - n) for n in range(60))
    refusals = tuple(Refusal(f"a{n}", "b", "no", ()) for n in range(30))
    file = tmp_path / "long.html"
    long = replace(report, xla=Side("xla", kernels=kernels), refusals=refusals)
    file.write_text(long.to_html(), "utf-8")
    context = browser.new_context(offline=True)
    opened = context.new_page()
    opened.goto(file.as_uri())
    visible = opened.locator("#kernel-table tbody tr:visible")
    last = opened.locator("#refusals code", has_text="a29")
    assert visible.count() == 40 and last.is_hidden()
    opened.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert visible.count() > 60 and last.is_visible()
    opened.evaluate("dispatchEvent(new Event('afterprint'))")
    assert visible.count() == 40 and last.is_hidden()
    context.close()


def test_all_columns_of_the_kernels_fit_a_wide_screen(page: Any) -> None:
    frame = page.locator("#kernels .scroll")
    assert frame.evaluate("e => e.scrollWidth - e.clientWidth") <= 0


@pytest.mark.parametrize("width", [360, 768, 1280])
def test_nothing_is_cut_off(page: Any, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_without_its_script_it_still_shows_the_figures(browser: Any, page_file: Path) -> None:
    context = browser.new_context(java_script_enabled=False, offline=True)
    opened = context.new_page()
    opened.goto(page_file.as_uri())
    assert opened.locator("svg.figure").first.is_visible()
    assert opened.locator("#kernel-table").is_visible()
    context.close()


def test_barriers_are_those_of_all_launches_of_a_call(report: Report) -> None:
    ours = report.astitch
    assert ours.barriers >= 1
    kernels = tuple(replace(kernel, launches=3.0) for kernel in ours.kernels)
    often = replace(report, astitch=replace(ours, kernels=kernels))
    assert often.astitch.barriers == 3 * ours.barriers
    assert often.astitch.barrier_us == pytest.approx(3 * ours.barrier_us)
    (line,) = [line for line in often.to_text().splitlines() if "barriers of the grid" in line]
    assert f"{3 * ours.barriers:.0f}" in line.split()
    assert f"inside stitched kernels: {3 * ours.barriers:.0f}," in often.to_html()
