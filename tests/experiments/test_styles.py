"""Schedulers look the same in every comparison, and are told apart."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adcs.experiments import page
from adcs.experiments.specs import NAMES
from adcs.experiments.styles import DARK, DASHES, LOOKS, OWN, styles_of

PLANNED = (
    "Oort",
    "ActiveFL",
    "ClusteredSampling",
    "FedCor",
    "HiCSFL",
    "FedCBS",
    "FLIPS",
    "TiFL",
    "FedCS",
    "REFL",
)
OURS = {name: name for name in NAMES}

# Machado, Oliveira and Fernandes (2009): linear RGB as seen without one kind of cones.
VISIONS = {
    "usual": np.eye(3),
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}
XYZ = np.array(
    [
        [0.4124564, 0.3575761, 0.1804375],
        [0.2126729, 0.7151522, 0.072175],
        [0.0193339, 0.119192, 0.9503041],
    ]
)


def lab(colour: str, vision: str) -> np.ndarray:
    """A colour in CIELAB, where distances are about those that people see."""
    rgb = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    seen = np.clip(np.asarray(VISIONS[vision]) @ linear, 0.0, 1.0)
    x, y, z = XYZ @ seen / [0.95047, 1.0, 1.08883]
    fx, fy, fz = (np.cbrt(t) if t > 0.008856 else 7.787 * t + 16 / 116 for t in (x, y, z))
    return np.array([116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)])


def apart(one: str, other: str, vision: str) -> float:
    return float(np.linalg.norm(lab(one, vision) - lab(other, vision)))


def test_every_scheduler_has_a_look_and_planned_ones_too() -> None:
    assert {*NAMES, *PLANNED} <= set(LOOKS)
    assert len(LOOKS) >= 17
    assert len({colour for colour, _, _ in LOOKS.values()}) == len(LOOKS)


@pytest.mark.parametrize("vision", VISIONS)
def test_schedulers_are_told_apart_by_any_reader(vision: str) -> None:
    assert len({marker for _, marker, _ in LOOKS.values()}) == len(LOOKS)
    for one, other in itertools.combinations(LOOKS, 2):
        far = apart(LOOKS[one][0], LOOKS[other][0], vision)
        if vision == "usual":
            assert far > 18.0, (one, other, far)
        if {one, other} <= set(NAMES):
            assert far > 12.0, (one, other, far)


def test_colours_are_seen_on_white() -> None:
    for colour in [look[0] for look in LOOKS.values()] + [colour for colour, _ in OWN]:
        assert lab(colour, "usual")[0] < 75.0


PAGE = Path(page.__file__).with_name("page.css").read_text()


def contrast(colour: str, background: str) -> float:
    """The contrast ratio of WCAG 2."""
    parts = []
    for each in (colour, background):
        rgb = np.array([int(each[i : i + 2], 16) / 255 for i in (1, 3, 5)])
        linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
        parts.append(linear @ [0.2126, 0.7152, 0.0722] + 0.05)
    return float(max(parts) / min(parts))


def test_contrast() -> None:
    assert contrast("#FFFFFF", "#000000") == pytest.approx(21.0)
    assert contrast("#402848", "#0f141a") == pytest.approx(1.42, abs=0.01)


def test_colours_are_seen_on_the_dark_page() -> None:
    dark = PAGE.partition('[data-theme="dark"]')[2].partition("}")[0]
    backgrounds = re.findall(r"--(?:page|panel): (#\w{6})", dark)
    assert len(backgrounds) == 2
    values = (0.0, 0.2, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95)
    variants = {f"{v}": f"ADCS(theta={v})" for v in values}
    above = {f"{name} {i}": f"{name}(unknown_group='x{i}')" for name in NAMES for i in range(6)}
    mine = {f"own {i}": f"file.py:Own{i}" for i in range(40)}
    for style in styles_of({**OURS, **variants, **above, **mine}).values():
        for background in backgrounds:
            assert contrast(style.dark, background) >= 3.0, style


@pytest.mark.parametrize("vision", VISIONS)
def test_dark_colours_are_told_apart_as_light_ones_are(vision: str) -> None:
    least = 18.0 if vision == "usual" else 12.0
    for one, other in itertools.combinations(LOOKS, 2):
        assert apart(DARK[LOOKS[one][0]], DARK[LOOKS[other][0]], vision) > least, (one, other)

    def closest(colours: list[str]) -> float:
        return min(apart(a, b, vision) for a, b in itertools.combinations(colours, 2))

    own = [colour for colour, _ in OWN]
    assert closest([DARK[colour] for colour in own]) > min(closest(own), 10.0)


@given(st.lists(st.sampled_from(NAMES), unique=True, max_size=17))
def test_an_own_scheduler_has_a_dash_pattern_that_is_free(names: list[str]) -> None:
    found = styles_of({**{name: name for name in names}, "Mine": "mine.py:Mine"})
    others = {found[name].dash for name in names}
    assert found["Mine"].dash not in others or len(others) == len(DASHES)


SPECS = [*NAMES, "ADCS(theta=0.2)", "ADCS(theta=0.95)", "mine.py:Mine", "lib.own:Other(a=1)"]


@given(st.lists(st.sampled_from(SPECS), unique=True, min_size=1), st.randoms())
def test_a_look_does_not_depend_on_place_or_company(specs: list[str], random: object) -> None:
    found = styles_of({spec: spec for spec in specs})
    assert list(found) == specs
    alone = {spec: styles_of({spec: spec})[spec] for spec in specs}
    for spec in specs:
        if spec in NAMES:
            assert found[spec] == alone[spec]
        assert found[spec].marker == alone[spec].marker
    # Variants keep their side of the scheduler's own shade.
    again = styles_of({spec: spec for spec in sorted(specs)})
    assert again == found
    assert len(set(found.values())) == len(specs)


def test_labels_say_nothing_about_looks() -> None:
    one = styles_of({"Uniform": "ADCS", "b": "Uniform"})
    assert one["Uniform"] == styles_of(OURS)["ADCS"]
    assert one["b"] == styles_of(OURS)["Uniform"]
    assert styles_of({"x": "adcs.schedulers:ADCS"})["x"] == styles_of(OURS)["ADCS"]


def test_variants_are_shades_of_one_colour() -> None:
    thetas = (0.0, 0.2, 0.5, 0.8, 0.95)
    found = styles_of({str(theta): f"ADCS(theta={theta})" for theta in thetas})
    base = styles_of(OURS)["ADCS"]
    assert found["0.8"] == base  # It is the default.
    lightness = [lab(found[str(theta)].colour, "usual")[0] for theta in thetas]
    assert lightness == sorted(lightness, reverse=True)
    assert min(-np.diff(lightness)) > 4.0
    assert len({style.dash for style in found.values()}) == len(thetas)
    assert len({style.fill for style in found.values()}) == len(thetas)
    for theta in thetas:
        style = found[str(theta)]
        assert style.marker == base.marker
        # A shade is the colour with white or black in it: on the line from one to the other.
        rgb, origin = (
            np.array([int(c[i : i + 2], 16) for i in (1, 3, 5)])
            for c in (style.colour, base.colour)
        )
        toward = np.full(3, 255) - origin if theta < 0.8 else -origin
        share = (rgb - origin) @ toward / (toward @ toward)
        np.testing.assert_allclose(rgb, origin + share * toward, atol=1.0)
        assert 0.0 <= share <= 0.6


@pytest.mark.parametrize("count", [2, 6, 12])
def test_many_variants_differ(count: int) -> None:
    specs = {str(i): f"ADCS(refresh_every={i + 1})" for i in range(count)}
    found = styles_of({**specs, "norm": "ADCS(quality='norm')", "twice": "ADCS(quality='norm')"})
    assert len(set(found.values())) == count + 2


@given(st.lists(st.from_regex(r"[A-Z][a-z]{1,6}", fullmatch=True), unique=True, max_size=40))
def test_schedulers_of_ones_own_differ(names: list[str]) -> None:
    found = styles_of({name: f"some/file.py:{name}" for name in names})
    assert len({(style.colour, style.marker) for style in found.values()}) == len(names)
    if len(names) <= len(OWN):
        assert len({style.colour for style in found.values()}) == len(names)
    strokes = {marker for _, marker in OWN}
    assert {style.marker for style in found.values()} <= strokes
    assert strokes.isdisjoint(marker for _, marker, _ in LOOKS.values())
    assert styles_of({name: f"moved.py:{name}" for name in reversed(names)}) == {
        name: found[name] for name in reversed(names)
    }


def test_an_own_class_of_a_known_name_has_a_look_of_its_own() -> None:
    found = styles_of({"ours": "ADCS", "mine": "mine.py:ADCS", "theirs": "theirs.py:ADCS"})
    assert len({(style.colour, style.marker) for style in found.values()}) == 3
    assert found["ours"] == styles_of(OURS)["ADCS"]


@pytest.mark.parametrize("value", ["10**400", "1e999", "None", "'x'", "[1, 2]", "-0.0", "True"])
def test_any_setting_has_a_place(value: str) -> None:
    setting = "9" * 400 if value == "10**400" else value
    found = styles_of({"a": "mine.py:Mine", "b": f"mine.py:Mine(x={setting})"})
    assert found["a"] != found["b"]


def test_every_scheduler_has_a_style_of_its_own() -> None:
    assert set(NAMES) == set(LOOKS)
