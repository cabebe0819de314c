"""Settings of how rounds end: synchronous, over-selected or buffered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from adcs.rounds import Buffered, over_selected
from adcs.simulation.settings import FORBID_UNKNOWN, MILLION, check_settings, setting


@dataclass(frozen=True)
class RoundSettings:
    """How rounds end.

    Attributes
    ----------
    mode
        "synchronous": a round waits for its cohort. "buffered": the model changes whenever
        `buffer_size` replies are in, and `concurrency` clients are at work at a time (FedBuff).
    over_select
        A synchronous round asks over_select times m clients and goes on with the first m usable
        replies. None waits for all m.
    buffer_size
        K of the buffered mode; None is half of the concurrency.
    concurrency
        C of the buffered mode; None is m.
    staleness
        What an old reply counts in the buffered mode, see `adcs.rounds.Buffered`.

    Examples
    --------
    >>> RoundSettings(over_select=1.3).asked(m=10)
    13
    >>> RoundSettings(mode="buffered").buffered(m=10)
    Buffered(size=5, concurrency=10, staleness='sqrt')
    >>> RoundSettings(buffer_size=5)
    Traceback (most recent call last):
    ...
    ValueError: round.buffer_size is a setting of mode buffered, and mode is synchronous
    """

    mode: Literal["synchronous", "buffered"] = setting(
        "synchronous", "How rounds end: all reply, or a buffer is full (FedBuff).", strict=None
    )
    over_select: float | None = setting(
        None, "Ask so many times m clients and go on with the first m replies.", ge=1, le=100
    )
    buffer_size: int | None = setting(
        None, "Replies in a buffer, K; half of the concurrency by default.", ge=1, le=MILLION
    )
    concurrency: int | None = setting(
        None, "Clients at work at a time, C, in mode buffered; m by default.", ge=1, le=MILLION
    )
    staleness: Literal["sqrt", "inverse", "constant"] = setting(
        "sqrt", "What a reply of s versions before counts: 1/sqrt(1+s), 1/(1+s) or 1.", strict=None
    )

    __pydantic_config__: ClassVar = FORBID_UNKNOWN

    def __post_init__(self) -> None:
        check_settings(self, "round")
        if self.mode == "buffered" and self.over_select is not None:
            raise ValueError(
                "round.over_select is a setting of mode synchronous, and mode is buffered"
            )
        for name, default in (("buffer_size", None), ("concurrency", None), ("staleness", "sqrt")):
            if self.mode == "synchronous" and getattr(self, name) != default:
                raise ValueError(
                    f"round.{name} is a setting of mode buffered, and mode is synchronous"
                )
        if self.concurrency is not None:
            self.buffered(self.concurrency)

    def asked(self, m: int) -> int:
        """Return how many clients a synchronous round asks."""
        return m if self.over_select is None else over_selected(m, self.over_select)

    def buffered(self, m: int) -> Buffered | None:
        """Return the buffered mode of m clients per round; None in synchronous mode."""
        if self.mode == "synchronous":
            return None
        concurrency = self.concurrency or m
        if self.buffer_size is not None and self.buffer_size > concurrency:
            name = "m" if self.concurrency is None else "round.concurrency"
            raise ValueError(
                f"round.buffer_size must be at most {name} ({concurrency}), the clients at work at "
                f"a time, got {self.buffer_size}"
            )
        return Buffered(self.buffer_size or -(-concurrency // 2), concurrency, self.staleness)
