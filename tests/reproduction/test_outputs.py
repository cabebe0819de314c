"""Figures that show all they were given, and claims whose numbers agree with their words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adcs.experiments import claims, wording
from adcs.experiments import figures as plots
from adcs.experiments.figures import (
    Bars,
    Dots,
    Line,
    Panel,
    bar_figure,
    dot_figure,
    line_figure,
    line_style,
)
from adcs.experiments.statistics import Estimate


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures that were saved, still open to be looked at."""
    kept: list[Any] = []
    save = plots._save

    def keep(figure: Any, stem: Path) -> list[Path]:
        kept.append(figure)
        return save(figure, stem)

    monkeypatch.setattr(plots, "_save", keep)
    return kept


@pytest.mark.parametrize("order", [(0.1, 0.3), (0.3, 0.1)])
def test_no_bar_or_mark_is_cut_off(
    order: tuple[float, float], drawn: list[Any], tmp_path: Path
) -> None:
    low = np.full(3, 0.02)
    panels = [Bars(str(top), np.array([0.05, 0.1, top]), low, low + top) for top in order]
    bar_figure(tmp_path / "bars", "bars", panels, ["a", "b", "c"], "ratio")
    for ax in drawn[0].axes:
        bottom, top = ax.get_ylim()
        assert bottom == 0.0
        assert max(bar.get_height() for bar in ax.patches) < top
        assert max(line.get_ydata().max() for line in ax.lines) < top
        ends = [segment[:, 1].max() for bars in ax.collections for segment in bars.get_segments()]
        assert max(ends) < top


def test_no_dot_is_cut_off(drawn: list[Any], tmp_path: Path) -> None:
    names = ("Uniform", "rival", "ours")
    lines = [
        Dots(
            str(mean),
            dict.fromkeys(names, Estimate(mean, 0.05, 5)),
            {"rival": 10 * mean, "ours": 0.01},
        )
        for mean in (0.2, 0.9)
    ]
    dot_figure(tmp_path / "dots", "dots", lines)
    for ax in drawn[0].axes:
        (left, right), (bottom, top) = ax.get_xlim(), ax.get_ylim()
        for line in ax.lines:
            assert left < line.get_xdata().min() <= line.get_xdata().max() < right
            assert bottom < line.get_ydata().min() <= line.get_ydata().max() < top


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
    line_figure(tmp_path / "lines", title, panels(labels, count))
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
    line_figure(tmp_path / "lines", "title", panels(["a", "b", "c", "d", "e"], 2))
    assert drawn[0].get_size_inches().tolist() == [9.2, 4.2]
    assert drawn[0].legends[0]._ncols == 4


def test_many_lines_are_told_apart() -> None:
    styles = [line_style(i) for i in range(40)]
    assert len({tuple(str(s[k]) for k in ("color", "linestyle", "marker")) for s in styles}) == 40
    assert {style["marker"] for style in styles[:8]} == {""}


def run(label: str, worst: float, seeds: int = 3) -> list[dict[str, Any]]:
    """Two evaluations of each seed, seeds 0.01 apart."""
    return [
        {
            "scheduler": label,
            "seed": seed,
            "server_round": done,
            "worst": worst + 0.01 * seed,
            "average": worst,
        }
        for seed in range(seeds)
        for done in (0, 100)
    ]


def test_a_margin_reads_on_from_its_claim() -> None:
    theta = {"Uniform": 0.42, "θ = 0": 0.3, "θ = 0.2": 0.36, "θ = 0.8": 0.6}
    lines = [line for label, worst in theta.items() for line in run(label, worst)]
    below, over, _ = claims.judge_theta(lines, list(theta))
    assert below.line() == (
        "- **holds**: With θ = 0.2 the worst accuracy is below Uniform's. By 0.060 [0.060, 0.060]."
    )
    assert over.numbers == "By 0.180 [0.180, 0.180]."
    r = {"R = 1": 0.59, "R = 5": 0.6, "R = 20": 0.3, "R = 500": 0.35, "R = 2000": 0.3}
    lines = [line for label, worst in r.items() for line in run(label, worst)]
    lower = next(c for c in claims.judge_refresh(lines, list(r)) if "R = 500 has" in c.text)
    assert lower.numbers == "By -0.050 [-0.050, -0.050]: it is the other way round."


def test_no_minus_zero() -> None:
    tiny = Estimate(-1e-5, 1e-6, 3)
    assert wording.difference(tiny) == "+0.000 [+0.000, +0.000]"
    assert wording.margin(tiny) == "0.000 [0.000, 0.000]"
    assert wording.margin(Estimate(-1e-5, None, 1)) == "0.000"


METHODS = ("Uniform", "PowerOfChoice", "OCS", "DivFL", "StaticDPP", "ADCS")


@pytest.mark.parametrize(
    ("worst", "verdict", "said"),
    [
        ({}, "does not hold", "All are equal; "),
        ({"ADCS": 0.6}, "does not hold", "Lowest, and equal, are Uniform, PowerOfChoice, OCS, "),
        ({"StaticDPP": 0.1}, "holds", "Lowest is StaticDPP; "),
        ({"OCS": 0.1}, "does not hold", "Lowest is OCS; "),
    ],
)
def test_ties_are_called_ties(worst: dict[str, float], verdict: str, said: str) -> None:
    # The tie is one of means: their sums differ in the last bits.
    values = {label: [0.1 + 0.2, 0.3] for label in METHODS}
    values["OCS"] = [0.3, 0.3]
    claim = claims._judge_lowest({**values, **{k: [v, v] for k, v in worst.items()}})
    assert claim.verdict == verdict
    assert claim.numbers.startswith(said)


def test_equal_seed_by_seed() -> None:
    claim = claims.above("A beats B", Estimate(0.0, 0.0, 5))
    assert (claim.verdict, claim.numbers) == ("does not hold", "They are equal in every seed.")
    lines = [line for x in ("Uniform", "θ = 0", "θ = 0.2", "θ = 0.8") for line in run(x, 0.0)]
    _, best, _ = claims.judge_theta(lines, ["Uniform", "θ = 0", "θ = 0.2", "θ = 0.8"])
    assert "(θ = 0, and equally θ = 0.2, θ = 0.8)" in best.text


def test_nothing_to_judge_is_undecided() -> None:
    nothing = {label: [float("nan")] for label in METHODS}
    assert claims._judge_lowest(nothing).verdict == "undecided"
