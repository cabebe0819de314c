"""Runs a strategy's own `start` with a scheduler in its hooks."""

from __future__ import annotations

import inspect
from types import FunctionType, MethodType
from typing import Any

from flwr.serverapp.strategy import Result, Strategy

from adcs.flower.strategies import inside

HOOKS = frozenset(
    {"configure_train", "aggregate_train", "configure_evaluate", "aggregate_evaluate", "summary"}
)
"""The methods that Flower's loop calls in each round, and once at the start."""


class StartProxy:
    """A strategy whose hooks are those of a wrapper; everything else is the strategy's own.

    A strategy may override `start`, to save the best model or to log to a tracker. That code runs
    with this object as `self`: hooks go to the wrapper, all other attributes are read from and
    written to the strategy, and `super()` works. A strategy inside it is replaced likewise, so that
    `self.base.start(...)` calls these hooks too.

    Parameters
    ----------
    strategy
        The strategy whose `start` is called.
    wrapper
        The strategy whose hooks are called.

    Examples
    --------
    >>> from flwr.serverapp.strategy import FedAvg
    >>> inner, wrapper = FedAvg(fraction_train=0.5), FedAvg()
    >>> proxy = StartProxy(inner, wrapper)
    >>> proxy.fraction_train, proxy.configure_train == wrapper.configure_train
    (0.5, True)
    >>> isinstance(proxy, FedAvg)
    True
    """

    def __init__(self, strategy: Strategy, wrapper: Strategy) -> None:
        object.__setattr__(self, "_parts", (strategy, wrapper))

    def __getattribute__(self, name: str) -> Any:
        strategy, wrapper = object.__getattribute__(self, "_parts")
        if name == "__class__":
            return type(strategy)
        if name in HOOKS:
            return getattr(wrapper, name)
        value = getattr(strategy, name)
        # The strategy's methods may call hooks too, so they are bound to this object.
        if isinstance(value, MethodType) and value.__self__ is strategy:
            return MethodType(value.__func__, self)
        if isinstance(value, Strategy) and value is inside(strategy):
            return StartProxy(value, wrapper)
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(object.__getattribute__(self, "_parts")[0], name, value)

    def __delattr__(self, name: str) -> None:
        delattr(object.__getattribute__(self, "_parts")[0], name)


def has_own_start(strategy: Strategy) -> bool:
    """Return whether a strategy overrides `start`; raise ValueError if it cannot be scheduled.

    >>> from flwr.serverapp.strategy import FedAvg
    >>> has_own_start(FedAvg())
    False
    """
    if "start" in vars(strategy):
        raise ValueError(
            f"start was replaced on an object of {type(strategy).__name__}, where it cannot be "
            "scheduled: override it in a subclass"
        )
    own: bool = inspect.getattr_static(type(strategy), "start") is not Strategy.start
    return own


def call_start(strategy: Strategy, wrapper: Strategy, *args: Any, **kwargs: Any) -> Result:
    """Call a strategy's `start` with the hooks of a wrapper.

    Parameters
    ----------
    strategy, wrapper
        As of `StartProxy`.
    *args, **kwargs
        The arguments of `start`.
    """
    start = inspect.getattr_static(type(strategy), "start")
    if not isinstance(start, FunctionType):  # Decorated by an object of another kind.
        raise ValueError(
            f"strategy must define start as a method, got {type(start).__name__} "
            f"in {type(strategy).__name__}"
        )
    result: Result = start(StartProxy(strategy, wrapper), *args, **kwargs)
    return result
