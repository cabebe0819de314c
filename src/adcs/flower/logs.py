"""Log messages, among Flower's own."""

from __future__ import annotations

import logging

log = logging.getLogger("flwr.adcs")


class Once:
    """Warns of each thing once.

    Examples
    --------
    >>> once = Once()
    >>> once("loss", "no client reported a loss"), once("loss", "no client reported a loss")
    (True, False)
    """

    def __init__(self) -> None:
        self._said: set[object] = set()

    def __call__(self, key: object, text: str) -> bool:
        """Warn, unless this key was warned of before; return whether it was new."""
        new = key not in self._said
        if new:
            self._said.add(key)
            log.warning(text)
        return new
