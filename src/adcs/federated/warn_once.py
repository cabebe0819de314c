"""Warnings that are logged once."""

from __future__ import annotations

import logging
from collections.abc import Hashable


class WarnOnce:
    """Logs each warning once.

    Parameters
    ----------
    log
        The logger; by default that of this package.

    Attributes
    ----------
    log
        The logger, for messages that may be repeated.

    Examples
    --------
    >>> warn_once = WarnOnce(logging.getLogger("example"))
    >>> text = "no client reported a loss"
    >>> warn_once("loss", text), warn_once("loss", text)
    (True, False)
    """

    def __init__(self, log: logging.Logger | None = None) -> None:
        self.log = logging.getLogger("adcs.federated") if log is None else log
        self._logged: set[Hashable] = set()

    def __call__(self, key: Hashable, text: str) -> bool:
        """Log a warning unless one with this key was logged before; return whether it was new."""
        new = key not in self._logged
        if new:
            self._logged.add(key)
            self.log.warning(text)
        return new
