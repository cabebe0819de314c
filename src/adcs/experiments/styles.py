"""Styles of schedulers in figures: a scheduler has the same style in every figure.

The class of a scheduler has a colour, a marker and a dash pattern. Its settings choose a shade of
the colour (lighter below the defaults, darker above them), partly filled markers, and another dash
pattern. The markers of this package's schedulers all differ, for readers who see fewer colours.

A user's scheduler has a marker that no scheduler of this package has, and a style that follows from
the name of its class. If two classes of one comparison have the same style, the second by name
takes the next one.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
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

STEP, LIGHTEST, DARKEST = 0.2, 0.5, 0.6
"""The fraction of white or black for each step from the defaults, and its limits."""

FILLS = (("right", "top", "full"), ("none", "left", "bottom"))
"""How the markers of variants above and below the defaults are filled, step by step."""


@dataclass(frozen=True)
class Style:
    """How a line and its markers are drawn.

    >>> Style("#D55E00", "-", "^").line
    {'color': '#D55E00', 'linestyle': '-'}
    """

    colour: str
    dash: Any
    marker: Any
    fill: str = "full"

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
    own = _own_looks([name for where, name in kinds if where or name not in LOOKS])
    found = {}
    for (where, name), variants in kinds.items():
        look = own[name] if where or name not in LOOKS else LOOKS[name]
        known = defaults(name) if not where and name in NAMES else {}
        found.update(_shades(look, variants, known))
    return {label: found[label] for label in schedulers}


def _own_looks(names: Sequence[str]) -> dict[str, tuple[str, Any, int]]:
    """Return a look for each name: by a checksum of it, the next free one where that is taken.

    >>> _own_looks(["Mine"]) == {k: v for k, v in _own_looks(["Yours", "Mine"]).items()
    ...                          if k == "Mine"}
    True
    """
    found: dict[str, tuple[str, Any, int]] = {}
    taken = [0] * len(OWN)
    for name in sorted(set(names)):
        first = zlib.crc32(name.encode()) % len(OWN)
        positions = [(first + i) % len(OWN) for i in range(len(OWN))]
        position = min(positions, key=lambda i: taken[i])
        turn, taken[position] = taken[position], taken[position] + 1
        _, marker = OWN[(position + turn) % len(OWN)]
        found[name] = (OWN[position][0], marker, (position + turn) % len(DASHES))
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
    found = {label: Style(colour, DASHES[dash], marker) for label in plain}
    for side, labels, most in ((1, below[::-1], LIGHTEST), (0, above, DARKEST)):
        step = min(STEP, most / max(len(labels), 1))
        for number, label in enumerate(labels, start=1):
            turn = number + (len(above) if side else 0)
            pattern = DASHES[(dash + turn) % len(DASHES)]
            fill = FILLS[side][(number - 1) % len(FILLS[side])]
            found[label] = Style(_mix(colour, step * number, side), pattern, marker, fill)
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


def _mix(colour: str, share: float, white: int) -> str:
    """Return a colour with a share of white (1) or black (0) mixed in.

    >>> _mix("#D55E00", 0.5, 1), _mix("#D55E00", 0.5, 0)
    ('#EAAE80', '#6A2F00')
    """
    channels = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    mixed = [round((1 - share) * channel + 255 * white * share) for channel in channels]
    return "#" + "".join(f"{channel:02X}" for channel in mixed)
