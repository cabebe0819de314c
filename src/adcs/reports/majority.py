"""What most clients say, where clients may lie and nobody else knows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from adcs._types import ClientId

T = TypeVar("T", int, tuple[int, ...])


class Majority(Generic[T]):
    """What most clients agree on, each by the last it said: a number, or a tuple of numbers.

    What holds keeps a tie; among others the smaller wins, so that the order in which
    clients speak does not matter.

    Examples
    --------
    >>> width = Majority[int]()
    >>> width.settle({"liar": 3}), width.settle({"a": 50}), width.settle({"b": 50})
    (3, 3, 50)
    """

    def __init__(self) -> None:
        self.value: T | None = None
        self._said: dict[ClientId, T] = {}
        self._counts: Counter[T] = Counter()

    def settle(self, said: Mapping[ClientId, T]) -> T | None:
        """Hear what some clients say now; return what holds."""
        for client, value in said.items():
            before = self._said.get(client)
            if before != value:
                if before is not None:
                    self._counts[before] -= 1
                self._said[client] = value
                self._counts[value] += 1
        most = max(self._counts.values(), default=0)
        if most and (self.value is None or self._counts[self.value] < most):
            self.value = min(value for value, count in self._counts.items() if count == most)
        return self.value

    def state(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {"value": self.value, "said": [list(pair) for pair in self._said.items()]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to a state returned by `state`."""
        self.value = _from_json(state["value"])
        self._said = {client: _from_json(value) for client, value in state["said"]}
        self._counts = Counter(self._said.values())


def _from_json(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
