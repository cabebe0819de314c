"""Figures show everything that they are given."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adcs.experiments import figures as plots
from adcs.experiments import tables
from adcs.experiments.figures import (
    Bars,
    Cost,
    Line,
    Map,
    Panel,
    bar_figure,
    cost_figure,
    heat_figure,
    limits,
    line_figure,
)
from adcs.experiments.statistics import Estimate, estimate
from adcs.experiments.styles import Style, styles_of


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures that were saved, still open to be looked at."""
    kept: list[Any] = []
    save = plots.save_figure

    def keep(figure: Any, stem: Path) -> list[Path]:
        kept.append(figure)
        return save(figure, stem)

    monkeypatch.setattr(plots, "save_figure", keep)
    return kept


def looks(names: Iterable[str]) -> dict[str, Style]:
    """Some look for each name."""
    return dict.fromkeys(names, *styles_of({"a": "Uniform"}).values())


@pytest.mark.parametrize("order", [(0.1, 0.3), (0.3, 0.1)])
def test_no_bar_or_mark_is_cut_off(
    order: tuple[float, float], drawn: list[Any], tmp_path: Path
) -> None:
    low = np.full(3, 0.02)
    panels = [
        Bars(str(top), [Estimate(mean, 0.02, 5) for mean in (0.05, 0.1, top)], low + top)
        for top in order
    ]
    bar_figure(tmp_path / "bars", "bars", panels, ["a", "b", "c"], "ratio", looks(map(str, order)))
    for ax in drawn[0].axes:
        bottom, top = ax.get_ylim()
        assert bottom == 0.0
        assert max(bar.get_height() for bar in ax.patches) < top
        assert max(line.get_ydata().max() for line in ax.lines) < top
        ends = [segment[:, 1].max() for bars in ax.collections for segment in bars.get_segments()]
        assert max(ends) < top


def panels(labels: list[str], count: int) -> list[Panel]:
    """Panels with a line for each label."""
    x = np.arange(3.0)
    lines = {label: Line(x, x + i, x + i, x + i) for i, label in enumerate(labels)}
    return [Panel("server_round", f"panel {i}", lines) for i in range(count)]


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize(
    "labels",
    [
        ["Uniform", *[f"ADCS(theta=0.{i},refresh_every=10)" for i in range(4)]],
        [f"scheduler number {i}" for i in range(11)],
        [f"/home/somebody/schedulers/patient.py:Patient(patience=0.5,{'a' * 90})", "Uniform"],
    ],
)
def test_no_entry_of_a_legend_is_cut_off(
    labels: list[str], count: int, drawn: list[Any], tmp_path: Path
) -> None:
    title = "a-name-of-a-file-that-is-rather-long-for-a-title: 18 of 30 clients per round " * 2
    line_figure(tmp_path / "lines", title, panels(labels, count), looks(labels))
    (figure,) = drawn
    figure.draw_without_rendering()
    (legend,) = figure.legends
    words = [text.get_text().replace("\n", "") for text in legend.get_texts()]
    assert words == labels
    page = figure.bbox
    for part in (legend, figure._suptitle):
        box = part.get_window_extent()
        assert page.x0 <= box.x0 < box.x1 <= page.x1
        assert page.y0 <= box.y0 < box.y1 <= page.y1
    # The curves keep their room.
    assert min(ax.get_window_extent().height for ax in figure.axes) > 0.55 * 3.6 * figure.dpi


def test_a_short_legend_leaves_the_figure_as_it_is(drawn: list[Any], tmp_path: Path) -> None:
    line_figure(tmp_path / "lines", "title", panels([*"abcde"], 2), looks("abcde"))
    assert drawn[0].get_size_inches().tolist() == [9.2, 4.2]
    assert drawn[0].legends[0]._ncols == 4


def test_a_scheduler_keeps_its_colour_in_every_figure(drawn: list[Any], tmp_path: Path) -> None:
    few = {"Uniform": "Uniform", "ADCS": "ADCS"}
    many = {"LiveADCS": "LiveADCS", "OCS": "OCS", **dict(reversed(few.items()))}
    for schedulers in (few, many):
        line_figure(tmp_path / "a", "t", panels([*schedulers], 1), styles_of(schedulers))
    found = []
    for figure, schedulers in zip(drawn, (few, many), strict=True):
        lines = [line for line in figure.axes[0].lines if len(line.get_xdata()) == 3]
        names = dict(zip(schedulers, [line.get_color() for line in lines], strict=True))
        legend = dict(
            zip(
                [text.get_text() for text in figure.legends[0].get_texts()],
                [handle.get_color() for handle in figure.legends[0].legend_handles],
                strict=True,
            )
        )
        assert names == legend
        found.append(names)
    assert found[0] == {name: found[1][name] for name in few}


def test_equal_lines_are_told_apart_by_their_markers(drawn: list[Any], tmp_path: Path) -> None:
    x = np.array([0.0, 100.0])
    line = Line(x, x, x, x)
    styles = styles_of({"Uniform": "Uniform", "ADCS": "ADCS", "Mine": "mine.py:Mine"})
    line_figure(
        tmp_path / "a", "t", [Panel("server_round", "y", dict.fromkeys(styles, line))], styles
    )
    marks = [line for line in drawn[0].axes[0].lines if line.get_linestyle() == "None"]
    assert len({mark.get_marker() for mark in marks}) == 3
    places = np.sort(np.concatenate([mark.get_xdata() for mark in marks]))
    # Every line has several, and no two markers are closer than a hundredth of the axis.
    assert min(len(mark.get_xdata()) for mark in marks) >= 5
    assert np.diff(places).min() > 1.0
    for mark in marks:  # They lie on the line.
        np.testing.assert_allclose(mark.get_xdata(), mark.get_ydata())


def shaded_share(ax: Any) -> float:
    """How much of a panel its shades cover, counted once for each."""
    bottom, top = ax.get_ylim()
    total = 0.0
    for shade in ax.collections:
        if type(shade).__name__ != "FillBetweenPolyCollection":
            continue
        points = shade.get_paths()[0].vertices
        xs = np.unique(points[:, 0])
        high = np.array([points[points[:, 0] == x, 1].max() for x in xs]).clip(bottom, top)
        low = np.array([points[points[:, 0] == x, 1].min() for x in xs]).clip(bottom, top)
        total += float((high - low).mean() / (top - bottom))
    return total


@pytest.mark.parametrize("count", [1, 2, 6, 12])
@pytest.mark.parametrize("width", [0.0, 0.01, 0.2, 1.0])
def test_shades_do_not_cover_a_panel(
    count: int, width: float, drawn: list[Any], tmp_path: Path
) -> None:
    x = np.linspace(0.0, 100.0, 41)
    names = [f"line {i}" for i in range(count)]
    lines = {}
    for i, name in enumerate(names):
        mean = 0.3 + 0.4 * (i + 1) / count * x / 100
        lines[name] = Line(x, mean, np.clip(mean - width, 0, 1), np.clip(mean + width, 0, 1))
    line_figure(tmp_path / "a", "t", [Panel("server_round", "y", lines)], looks(names))
    ax = drawn[0].axes[0]
    # The curves set the axis, and are seen.
    assert ax.get_ylim() == limits([*lines.values()])
    assert shaded_share(ax) <= 0.55
    shades = [c for c in ax.collections if type(c).__name__ == "FillBetweenPolyCollection"]
    bars = [c for c in ax.collections if type(c).__name__ == "LineCollection"]
    # Every interval is drawn, one way or the other.
    assert len(shades) + len(bars) == (count if width else 0)
    assert sum(len(c.get_segments()) for c in bars) <= 12


def test_a_panel_shows_where_its_curves_differ() -> None:
    x = np.linspace(0.0, 20000.0, 201)
    rise = 1.0 - np.exp(-x / 300)
    close = [Line(x, y, y, y) for y in (0.8 * rise, 0.79 * rise, 0.775 * rise)]
    bottom, top = limits(close)
    assert 0.6 < bottom < 0.775
    assert 0.8 < top < 0.85
    # From a quarter of the axis on, all is shown.
    assert all(bottom < line.mean[x >= 5000].min() for line in close)
    # Falling curves too, and curves that are far apart are shown from their beginning.
    bottom, top = limits([Line(x, 1 - line.mean, line.mean, line.mean) for line in close])
    assert top < 0.4
    apart = [Line(x, y, y, y) for y in (0.8 * rise, 0.4 * rise)]
    assert limits(apart)[0] < 0.0
    # One curve, equal curves, a curve that has no number, no curve at all.
    nothing = np.full_like(x, np.nan)
    for lines in (apart[:1], [apart[0]] * 2, [apart[0], Line(x, nothing, nothing, nothing)]):
        assert limits(lines) == pytest.approx((-0.064, 0.864), abs=1e-6)
    assert limits([Line(x, nothing, nothing, nothing)]) == (0.0, 1.0)


def test_heat_maps_of_a_figure_share_a_colour_scale(drawn: list[Any], tmp_path: Path) -> None:
    tops = (0.01, 1.0, 300.0, 2.0, 3.0, 4.0)
    maps = [Map(f"round {top}", top * (1.5 * np.eye(10) - 0.5)) for top in tops]
    heat_figure(
        tmp_path / "maps", "title\nof two lines", maps, [f"{i} Ankle boot" for i in range(10)]
    )
    (figure,) = drawn
    images = [image for ax in figure.axes for image in ax.get_images()]
    assert len(images) == 6
    assert {(i.norm.vmin, i.norm.vmax, i.norm.linthresh) for i in images} == {(-300, 300, 0.0001)}
    # One colour bar for them all.
    assert len([ax for ax in figure.axes if ax.get_label() == "<colorbar>"]) == 1
    # Names of clients are not cut off.
    figure.draw_without_rendering()
    for ax in figure.axes:
        for text in (*ax.get_xticklabels(), *ax.get_yticklabels()):
            box = text.get_window_extent()
            assert box.x0 >= 0.0
            assert box.y0 >= 0.0


@pytest.mark.parametrize("seeds", [1, 2, 5])
def test_accuracy_over_cost(seeds: int, drawn: list[Any], tmp_path: Path) -> None:
    styles = styles_of({"Uniform": "Uniform", "ADCS": "ADCS", "θ = 0.5": "ADCS(theta=0.5)"})
    points = {
        name: (
            estimate([100.0 + 1.0 * i] * seeds),
            estimate([0.5 + 0.01 * i + 0.02 * seed for seed in range(seeds)]),
        )
        for i, name in enumerate(styles)
    }
    files = cost_figure(tmp_path / "cost", "t", [[Cost("updates", "worst", points)]], styles)
    ax = drawn[0].axes[0]
    (left, right), (bottom, top) = ax.get_xlim(), ax.get_ylim()
    marks = [line for line in ax.lines if line.get_marker() in "s^"]
    assert [mark.get_marker() for mark in marks] == ["s", "^", "^"]
    assert len({mark.get_markerfacecolor() + mark.get_fillstyle() for mark in marks}) == 3
    # Marks are where their numbers are, and a later one does not hide an earlier one.
    assert [mark.get_xdata()[0] for mark in marks] == [100.0, 101.0, 102.0]
    assert all(line.get_transform() == ax.transData for line in ax.lines)
    sizes = [mark.get_markersize() for mark in marks]
    assert sizes[0] > sizes[1] > sizes[2] + 2.0
    for line in ax.lines:
        assert left < min(line.get_xdata()) <= max(line.get_xdata()) < right
        assert bottom < min(line.get_ydata()) <= max(line.get_ydata()) < top
    dots = [line for line in ax.lines if line.get_marker() == "."]
    assert [len(dot.get_xdata()) for dot in dots] == ([2, 2, 2] if seeds == 2 else [])
    assert bool(ax.collections) == (seeds == 5)  # Bars.
    assert len(files[-1].read_text().splitlines()) == 1 + 3


@pytest.mark.parametrize("label", ["$x", "$a$ and $b$", r"\$", "θ = $", r"$\nope$", "_x", "‖g_S‖"])
def test_any_label_is_drawn(label: str, drawn: list[Any], tmp_path: Path) -> None:
    line_figure(tmp_path / "a", label, panels([label], 2), looks([label]))
    drawn[0].draw_without_rendering()
    assert len(drawn[0].legends[0].get_texts()) == 1


def test_no_minus_zero() -> None:
    tiny = Estimate(-1e-5, 1e-6, 3)
    assert tables.format_difference(tiny) == "+0.000 [+0.000, +0.000]"
    assert tables.format_margin(tiny) == "0.000 [0.000, 0.000]"
    assert tables.format_margin(Estimate(-1e-5, None, 1)) == "0.000"
