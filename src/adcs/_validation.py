"""Names that people write, and those that they may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return what is to be said about a name that is not known.

    >>> did_you_mean("unifrom", ["Uniform", "OCS"]), did_you_mean("x", ["Uniform", "OCS"])
    ('did you mean Uniform?', 'there are Uniform, OCS')
    """
    folded = {one.lower(): one for one in known}
    near = difflib.get_close_matches(name.lower(), folded, n=1)
    return f"did you mean {folded[near[0]]}?" if near else f"there are {', '.join(folded.values())}"
