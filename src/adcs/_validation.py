"""Names that people write, and those that they may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return what is to be said about a name that is not known.

    >>> did_you_mean("unifrom", ["Uniform", "OCS"]), did_you_mean("x", ["Uniform", "OCS"])
    ('did you mean Uniform?', 'there are Uniform, OCS')
    """
    folded = {one.lower(): one for one in known}
    near = difflib.get_close_matches(name.lower(), folded, n=1)
    return f"did you mean {folded[near[0]]}?" if near else f"there are {', '.join(folded.values())}"


def near_by(path: Path) -> str:
    """Return which path beside one that does not exist may have been meant, as a question.

    Files with another ending are not meant, nor is anything that is only a little alike.

    >>> near_by(Path("no/such/file.npz"))
    ''
    """
    try:
        beside = [one.name for one in path.parent.iterdir() if one.suffix == path.suffix]
    except OSError:
        beside = []
    near = difflib.get_close_matches(path.name, beside, n=1)
    return f"; did you mean {path.with_name(near[0])}?" if near else ""
