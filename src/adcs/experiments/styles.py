"""Styles of schedulers in figures: a scheduler has the same style in every figure.

The class of a scheduler has a colour, a marker and a dash pattern. Its settings choose a shade of
the colour (lighter below the defaults, darker above them), partly filled markers, and another dash
pattern. The markers of this package's schedulers all differ, for readers who see fewer colours.

A user's scheduler has a marker that no scheduler of this package has, and a style that follows from
the name of its class. If two classes of one comparison have the same style, the second by name
takes the next one. Its dash pattern is one that no other scheduler of the comparison has, while
there are such.

A scheduler has a second colour for the dark backgrounds of the page, of the same hue.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from adcs.experiments.specs import NAMES, defaults, parts

DASHES: tuple[Any, ...] = (
    "-",
    (0, (5, 1.5)),
    (0, (1, 1)),
    (0, (6, 1.5, 1, 1.5)),
    (0, (3, 1)),
    (0, (6, 1.5, 1, 1.5, 1, 1.5)),
)

LOOKS: dict[str, tuple[str, Any, int]] = {
    "Uniform": ("#8C8C8C", "s", 0),
    "PowerOfChoice": ("#7A2BE0", "v", 1),
    "OCS": ("#56B4E9", "P", 2),
    "DivFL": ("#00694A", ">", 3),
    "StaticDPP": ("#7A3B22", "X", 4),
    "ADCS": ("#D55E00", "^", 0),
    "LiveADCS": ("#0072B2", "o", 5),
    "Oort": ("#A0186B", "<", 1),
    "ActiveFL": ("#8FB84E", "p", 2),
    "ClusteredSampling": ("#402848", "*", 3),
    "FedCor": ("#9A8CFF", "h", 4),
    "HiCSFL": ("#2B2F8F", "d", 5),
    "FedCBS": ("#E03860", (4, 1, 0), 1),
    "FLIPS": ("#409820", (6, 1, 0), 2),
    "TiFL": ("#C880B0", "H", 3),
    "FedCS": ("#787030", (3, 1, 0), 4),
    "REFL": ("#78C0A0", "8", 5),
}
"""Colour, marker and index in DASHES by class, planned schedulers included."""

OWN = (
    ("#333333", "x"),
    ("#C2185B", "+"),
    ("#3355BB", "1"),
    ("#996655", "2"),
    ("#558844", "3"),
    ("#AA44DD", "4"),
    ("#B8860B", "|"),
    ("#5C7A99", "_"),
)
"""Colours and markers of users' schedulers."""

DARK = {
    "#8C8C8C": "#C5CCD3",
    "#7A2BE0": "#9549FF",
    "#56B4E9": "#6CC8FF",
    "#00694A": "#599574",
    "#7A3B22": "#AA654B",
    "#D55E00": "#D15A00",
    "#0072B2": "#699FE3",
    "#A0186B": "#C8458E",
    "#8FB84E": "#96C155",
    "#402848": "#927FB5",
    "#9A8CFF": "#9C8CFF",
    "#2B2F8F": "#766EC3",
    "#E03860": "#FF5779",
    "#409820": "#269510",
    "#C880B0": "#DA8DBB",
    "#787030": "#A39652",
    "#78C0A0": "#82C9A8",
    "#333333": "#00B3B9",
    "#C2185B": "#E91D6A",
    "#3355BB": "#526CD7",
    "#996655": "#956930",
    "#558844": "#9FD690",
    "#AA44DD": "#B95BFF",
    "#B8860B": "#D19A22",
    "#5C7A99": "#627C93",
}
"""Colours on the dark backgrounds of the page, by those of `LOOKS` and `OWN`; at least 3 : 1."""

GREY = "#9AA5B1"
"""What the colours of variants above the defaults approach on a dark background."""

STEP, LIGHTEST, DARKEST = 0.2, 0.5, 0.6
"""The fraction of white or black for each step from the defaults, and its limits."""

FILLS = (("right", "top", "full"), ("none", "left", "bottom"))
"""How the markers of variants above and below the defaults are filled, step by step."""


@dataclass(frozen=True)
class Style:
    """How a line and its markers are drawn; `dark` is the colour on a dark background.

    >>> Style("#D55E00", "-", "^").line
    {'color': '#D55E00', 'linestyle': '-'}
    """

    colour: str
    dash: Any
    marker: Any
    fill: str = "full"
    dark: str = ""

    @property
    def solid(self) -> bool:
        """Whether the line has no gaps."""
        return bool(self.dash == "-")

    @property
    def line(self) -> dict[str, Any]:
        """Settings of matplotlib for the line."""
        return {"color": self.colour, "linestyle": self.dash}

    @property
    def mark(self) -> dict[str, Any]:
        """Settings of matplotlib for its markers."""
        strokes = self.marker in {marker for _, marker in OWN}
        stars = self.marker == "*" or isinstance(self.marker, tuple)
        return {
            "marker": self.marker,
            "fillstyle": self.fill,
            "markerfacecolor": self.colour,
            "markerfacecoloralt": "white",
            "markeredgecolor": self.colour if strokes or self.fill != "full" else "white",
            "markeredgewidth": 1.4 if strokes else 0.6 if self.fill == "full" else 1.2,
            "markersize": 9.5 if stars else 6.0 if self.marker in ("D", "s") else 7.0,
        }


def styles_of(schedulers: Mapping[str, str]) -> dict[str, Style]:
    """Return how each scheduler of a comparison is drawn, by label.

    Parameters
    ----------
    schedulers
        The specs by label. The order does not matter.

    Examples
    --------
    >>> found = styles_of({"Uniform": "Uniform", "θ = 0.5": "ADCS(theta=0.5)", "ADCS": "ADCS"})
    >>> found["ADCS"].colour, found["θ = 0.5"].colour, found["θ = 0.5"].fill
    ('#D55E00', '#DD7E33', 'none')
    """
    kinds: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for label, spec in schedulers.items():
        where, name, settings = parts(spec)
        # Users' classes are identified by name, without their file.
        kinds.setdefault(("own" if where else "", name), {})[label] = settings
    found: dict[str, Style] = {}
    for (where, name), variants in kinds.items():
        if not where and name in LOOKS:
            known = defaults(name) if name in NAMES else {}
            found.update(_shades(LOOKS[name], variants, known))
    used = {DASHES.index(style.dash) for style in found.values()}
    own = _own_looks([name for where, name in kinds if where or name not in LOOKS], used)
    for (where, name), variants in kinds.items():
        if where or name not in LOOKS:
            found.update(_shades(own[name], variants, {}))
    return {label: found[label] for label in schedulers}


def _own_looks(names: Sequence[str], used: Collection[int] = ()) -> dict[str, tuple[str, Any, int]]:
    """Return a look for each name: by a checksum of it, the next free one where that is taken.

    Parameters
    ----------
    names
        The names.
    used
        The indices in DASHES of patterns that others have.

    Examples
    --------
    >>> _own_looks(["Mine"]) == {k: v for k, v in _own_looks(["Yours", "Mine"]).items()
    ...                          if k == "Mine"}
    True
    """
    found: dict[str, tuple[str, Any, int]] = {}
    taken, dashes = [0] * len(OWN), set(used)
    for name in sorted(set(names)):
        first = zlib.crc32(name.encode()) % len(OWN)
        positions = [(first + i) % len(OWN) for i in range(len(OWN))]
        position = min(positions, key=lambda i: taken[i])
        turn, taken[position] = taken[position], taken[position] + 1
        _, marker = OWN[(position + turn) % len(OWN)]
        order = [(position + turn + i) % len(DASHES) for i in range(len(DASHES))]
        dash = next((i for i in order if i not in dashes), order[0])
        dashes.add(dash)
        found[name] = (OWN[position][0], marker, dash)
    return found


def _shades(
    look: tuple[str, Any, int], variants: Mapping[str, Mapping[str, Any]], known: Mapping[str, Any]
) -> dict[str, Style]:
    """Return how the variants of one scheduler are drawn: those below its defaults lighter."""
    colour, marker, dash = look
    keys = sorted({key for settings in variants.values() for key in settings})

    def sort_key(settings: Mapping[str, Any]) -> list[tuple[int, float, str]]:
        return [_rank({**known, **settings}.get(key, _MISSING)) for key in keys]

    order = sorted(variants, key=lambda label: (sort_key(variants[label]), label))
    usual = sort_key({})
    below = [label for label in order if sort_key(variants[label]) < usual]
    rest = order[len(below) :]
    plain = rest[:1] if rest and sort_key(variants[rest[0]]) == usual else []
    above = rest[len(plain) :]
    dark = DARK[colour]
    found = {label: Style(colour, DASHES[dash], marker, dark=dark) for label in plain}
    for side, labels, most in ((1, below[::-1], LIGHTEST), (0, above, DARKEST)):
        step = min(STEP, most / max(len(labels), 1))
        for number, label in enumerate(labels, start=1):
            turn = number + (len(above) if side else 0)
            pattern = DASHES[(dash + turn) % len(DASHES)]
            fill = FILLS[side][(number - 1) % len(FILLS[side])]
            share = step * number
            shade = _mix(colour, share, "#FFFFFF" if side else "#000000")
            of_dark = _mix(dark, share, "#FFFFFF" if side else GREY)
            found[label] = Style(shade, pattern, marker, fill, of_dark)
    return found


_MISSING = object()


def _rank(value: Any) -> tuple[int, float, str]:
    """Return what settings are sorted by: none first, then numbers by size, then all else.

    >>> sorted([0.5, "loss", None, 2], key=_rank)
    [None, 0.5, 2, 'loss']
    """
    if value is _MISSING:
        return (0, 0.0, "")
    if value is None:
        return (1, 0.0, "")
    if isinstance(value, (bool, int, float)) and value == value:
        return (2, value, "")
    return (3, 0.0, repr(value))


def _mix(colour: str, share: float, other: str) -> str:
    """Return a colour with a share of another mixed in.

    >>> _mix("#D55E00", 0.5, "#FFFFFF"), _mix("#D55E00", 0.5, "#000000")
    ('#EAAE80', '#6A2F00')
    """
    channels, others = ([int(c[i : i + 2], 16) for i in (1, 3, 5)] for c in (colour, other))
    mixed = [round((1 - share) * a + share * b) for a, b in zip(channels, others, strict=True)]
    return "#" + "".join(f"{channel:02X}" for channel in mixed)
