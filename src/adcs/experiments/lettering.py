"""Words in figures: symbols, titles that fold, legends that have room for all of their entries."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

LABEL = 60
"""Characters in a line of a legend's entry; two such entries and more stand under each other."""

TITLE = 9
"""Characters of a title to the inch."""

USUAL = 0.55
"""Inches of a legend of two lines, which every figure has room for."""


def fold(text: str, width: int) -> str:
    """Return a text in lines of at most so many characters, broken after spaces and commas.

    >>> fold("ADCS(theta=0.2,refresh_every=10)", 20)
    'ADCS(theta=0.2,\\nrefresh_every=10)'
    >>> fold("abcdef", 4)
    'abc\\ndef'
    """
    lines = [""]
    for part in re.findall(rf"[^\s,]{{1,{width - 1}}}[\s,]*|[\s,]+", text):
        if len(lines[-1]) + len(part.rstrip()) > width:
            lines.append("")
        lines[-1] += part
    return "\n".join(line.rstrip() for line in lines if line.strip())


GREEK = {"α": "alpha", "β": "beta", "γ": "gamma", "θ": "theta", "κ": "kappa", "μ": "mu"}

_SYMBOL = re.compile(
    r"‖g_[SN](?: - g_[SN])?‖"  # Norms of gradients,
    rf"|[{''.join(GREEK)}]"  # Greek letters,
    r"|\b[A-Za-z](?= = )"  # a letter that has a value,
    r"|(?<=\s)(?![AI]\b)[A-Z](?=\s|$|,)"  # and a capital that stands alone, not at the beginning.
)


def mathtext(text: str) -> str:
    r"""Return a plain text with its symbols in mathtext, as all figures write them.

    A dollar sign stays one.

    >>> mathtext("θ = 0.5"), mathtext("N = 10, varying R"), mathtext("A, $5")
    ('$\\theta$ = 0.5', '$N$ = 10, varying $R$', 'A, \\$5')
    >>> mathtext("bias ‖g_S - g_N‖")
    'bias $\\|g_S - g_N\\|$'
    """

    def symbol(found: re.Match[str]) -> str:
        name = GREEK.get(found[0])
        return "$" + (f"\\{name}" if name else found[0].replace("‖", r"\|")) + "$"

    return _SYMBOL.sub(symbol, text.replace("$", r"\$"))


def add_title(figure: Any, title: str) -> None:
    """Put a title above a figure, in as many lines as its width asks for."""
    lines = [fold(line, int(TITLE * figure.get_figwidth())) for line in title.splitlines()]
    figure.suptitle(mathtext("\n".join(lines)))


def add_legend(
    figure: Any, handles: Sequence[Any], names: Sequence[str], columns: int, **more: Any
) -> None:
    """Put a legend below a figure, in at most so many columns, and in fewer where they are wide.

    The figure grows by what the legend takes beyond two lines. Further settings are matplotlib's.
    """
    renderer = figure.canvas.get_renderer()
    words = [mathtext(fold(name, LABEL)) for name in names]
    settings = {"loc": "outside lower center", "frameon": False, **more}
    for count in range(max(1, min(columns, len(names))), 0, -1):
        legend = figure.legend(handles, words, ncols=count, **settings)
        box = legend.get_window_extent(renderer)
        if box.width <= figure.bbox.width or count == 1:
            break
        legend.remove()
    inches = box.height / figure.dpi
    figure.set_figheight(figure.get_figheight() + max(0.0, inches - USUAL))
