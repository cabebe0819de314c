"""What is known about Flower's strategies: how they aggregate, and what they need in replies."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from flwr.serverapp.strategy import (
    Bulyan,
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedMedian,
    FedTrimmedAvg,
    FedXgbBagging,
    FedXgbCyclic,
    FedYogi,
    Krum,
    QFedAvg,
    Strategy,
)

from adcs._validation import check_number, did_you_mean
from adcs.federated.messages import ALL_CHECKS
from adcs.rounds import Buffered
from adcs.schedulers.base import Scheduler

UNWEIGHTED = (Bulyan, FedMedian, FedTrimmedAvg, FedXgbBagging, FedXgbCyclic, Krum, QFedAvg)
"""Flower's strategies that aggregate without weights, or with weights of their own."""

PRIVATE = (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
)

WHOLE_MODEL = (*PRIVATE, FedAdagrad, FedAdam, FedAvgM, FedYogi, QFedAvg)
"""Flower's strategies that raise an error if replies lack an array of the model."""

BUFFERED = (FedAdagrad, FedAdam, FedAvg, FedAvgM, FedYogi)
"""Flower's strategies whose aggregation can take re-based replies; FedProx aggregates as FedAvg."""

LENIENT = frozenset({"sizes", "values", "examples", "losses"})
"""The checks of `checks="lenient"`: absurd replies, whatever a strategy can aggregate."""

CheckSetting = str | Collection[str]
"""The setting `checks=`: "auto", "strict", "lenient", or names of checks."""


def innermost(strategy: Strategy) -> Strategy:
    """Return the strategy that others (differential privacy) are wrapped around.

    >>> from flwr.serverapp.strategy import FedAvg
    >>> base = FedAvg()
    >>> innermost(DifferentialPrivacyServerSideFixedClipping(base, 1.0, 1.0, 2)) is base
    True
    """
    return chain(strategy)[-1]


def chain(strategy: Strategy) -> list[Strategy]:
    """Return a strategy and those inside it, the outermost first.

    >>> from flwr.serverapp.strategy import FedAvg
    >>> len(chain(DifferentialPrivacyServerSideFixedClipping(FedAvg(), 1.0, 1.0, 2)))
    2
    """
    found = [strategy]
    while (inner := inside(found[-1])) is not None and all(inner is not each for each in found):
        found.append(inner)
    return found


def inside(strategy: Strategy) -> Strategy | None:
    """Return the strategy that another is wrapped around, or None.

    Flower's wrappers hold it as `strategy`, those of users under any name. A strategy that is
    derived from one of Flower's aggregates itself: what else it holds is no part of it.

    >>> from flwr.serverapp.strategy import FedAvg
    >>> inside(FedAvg()) is None
    True
    """
    attributes = vars(strategy)
    if isinstance(inner := attributes.get("strategy"), Strategy):
        return inner
    held = [value for value in attributes.values() if isinstance(value, Strategy)]
    flowers = [kind for kind in type(strategy).__mro__ if kind.__module__.startswith("flwr.")]
    if len(held) == 1 and flowers == [Strategy]:
        return held[0]
    inner = getattr(strategy, "strategy", None)  # a property
    return inner if isinstance(inner, Strategy) else None


def averages_by_weight(strategy: Strategy) -> bool:
    """Return whether the strategy averages models by its `weighted_by_key`.

    >>> from flwr.serverapp.strategy import FedAvg
    >>> averages_by_weight(FedAvg()), averages_by_weight(QFedAvg(client_learning_rate=0.1))
    (True, False)
    """
    inner = innermost(strategy)
    return hasattr(inner, "weighted_by_key") and not isinstance(inner, UNWEIGHTED)


def uses_flowers_aggregation(strategy: Strategy, method: str = "aggregate_train") -> bool:
    """Return whether replies reach Flower's own aggregation, which checks that they are alike.

    An aggregation of the user's own may take replies that differ. One that calls Flower's, as
    `super().aggregate_train(...)`, may not.

    >>> from flwr.serverapp.strategy import FedAvg
    >>> class Own(FedAvg):
    ...     def aggregate_train(self, server_round, replies):
    ...         return None, None
    >>> uses_flowers_aggregation(FedAvg()), uses_flowers_aggregation(Own())
    (True, False)
    """
    inner = innermost(strategy)
    for kind in type(inner).__mro__:
        if method not in vars(kind):
            continue
        if kind.__module__.startswith("flwr."):
            return kind is not Strategy
        code = getattr(vars(kind)[method], "__code__", None)
        names = () if code is None else code.co_names
        if method not in names and "_check_and_log_replies" not in names:
            return False
    return False


def reads_metrics(strategy: Strategy) -> bool:
    """Return whether the strategy aggregates metrics with a function of the user's.

    >>> from flwr.serverapp.strategy import FedAvg
    >>> reads_metrics(FedAvg()), reads_metrics(FedAvg(train_metrics_aggr_fn=max))
    (False, True)
    """
    inner = innermost(strategy)
    functions = [
        getattr(inner, f"{stage}_metrics_aggr_fn", None) for stage in ("train", "evaluate")
    ]
    return any(
        not str(getattr(function, "__module__", "")).startswith("flwr.")
        for function in functions
        if function is not None
    )


MOMENTS = ("momentum_vector", "m_t", "v_t", "clipping_norm")
"""Attributes in which Flower's strategies keep something between rounds, beside the model."""

TRAINING_HOOKS = ("configure_train", "aggregate_train", "start")


def stateful_parts(strategy: Strategy) -> list[tuple[Strategy, str]]:
    """Return the strategies, with those inside, and the attributes that a checkpoint saves.

    A strategy that has the methods `state` and `load_state` is saved by these: its attribute is
    empty here.

    >>> [name for _, name in stateful_parts(FedAdam())]
    ['m_t', 'v_t']
    """
    parts: list[tuple[Strategy, str]] = []
    for each in chain(strategy):
        if callable(getattr(each, "state", None)) and callable(getattr(each, "load_state", None)):
            parts.append((each, ""))
        else:
            parts += [(each, name) for name in MOMENTS if name in vars(each)]
    return parts


def part_names(parts: Iterable[tuple[Strategy, str]]) -> list[str]:
    """Return the names of what `stateful_parts` returns, by the classes of Flower's.

    The user's subclass of a strategy of Flower's goes by the name of that strategy, and a `state`
    of its own by its own name.

    >>> part_names(stateful_parts(FedAdam()))
    ['FedAdam.m_t', 'FedAdam.v_t']
    """
    names = []
    for each, name in parts:
        kinds = type(each).__mro__
        flowers = next(kind for kind in kinds if kind.__module__.startswith("flwr."))
        names.append(f"{flowers.__name__}.{name}" if name else f"{kinds[0].__name__}.state")
    return names


def unsaved(strategy: Strategy) -> list[str]:
    """Return the names of strategies that may keep something that a checkpoint does not save.

    These are the user's own that take part in training.

    >>> unsaved(FedAdam())
    []
    """
    saved = [each for each, name in stateful_parts(strategy) if not name]
    names = []
    for each in chain(strategy):
        own = [kind for kind in type(each).__mro__ if not kind.__module__.startswith("flwr.")]
        trains = any(name in vars(kind) for kind in own for name in TRAINING_HOOKS)
        if trains and not any(each is one for one in saved):
            names.append(type(each).__name__)
    return names


def enabled_checks(setting: CheckSetting, strategy: Strategy) -> frozenset[str]:
    """Return the names of the checks that a setting switches on.

    Parameters
    ----------
    setting
        "auto" checks what the strategy needs; "strict" checks everything, "lenient" only what
        protects the run; a collection of names switches on these.
    strategy
        The strategy.

    Examples
    --------
    >>> from flwr.serverapp.strategy import FedAvg
    >>> sorted(ALL_CHECKS - enabled_checks("auto", FedAvg()))
    ['missing']
    >>> enabled_checks(["shape"], FedAvg())
    Traceback (most recent call last):
    ...
    ValueError: checks must be "auto", "strict", "lenient" or names of checks, got 'shape'; did you
    mean shapes?
    """
    if setting == "strict":
        return ALL_CHECKS
    if setting == "lenient":
        return LENIENT
    if setting == "auto":
        flowers = uses_flowers_aggregation(strategy)
        private = any(isinstance(each, PRIVATE) for each in chain(strategy))
        whole = private or isinstance(innermost(strategy), WHOLE_MODEL)
        left_out = set() if flowers else {"records", "extra"}
        if not (flowers and whole):
            left_out.add("missing")
        return ALL_CHECKS - left_out
    names = list(setting) if isinstance(setting, Collection) else [setting]
    names = [setting] if isinstance(setting, str) else names
    for name in names:
        if name not in ALL_CHECKS:
            hint = did_you_mean(str(name), sorted(ALL_CHECKS))
            raise ValueError(
                'checks must be "auto", "strict", "lenient" or names of checks, got '
                f"{name!r}; {hint}"
            )
    return frozenset(names)


def check_kinds(strategy: object, scheduler: object) -> None:
    """Raise ValueError for anything but a strategy of Flower's message API and a scheduler.

    >>> check_kinds("FedAvg", None)
    Traceback (most recent call last):
    ...
    ValueError: strategy must be one of flwr.serverapp.strategy, got builtins.str
    """
    kind = type(strategy)
    if any(each.__module__.startswith("flwr.server.") for each in kind.__mro__):
        raise ValueError(
            f"{kind.__name__} is a strategy of Flower's legacy API (flwr.server.strategy), which "
            f"has no messages to schedule: use that of flwr.serverapp.strategy in a ServerApp "
            "with @app.main(), and a ClientApp with @app.train() in place of NumPyClient; "
            "docs/howto/flower.md shows how to migrate"
        )
    if not isinstance(strategy, Strategy):
        raise ValueError(
            "strategy must be one of flwr.serverapp.strategy, got "
            f"{kind.__module__}.{kind.__name__}"
        )
    if not isinstance(scheduler, Scheduler):
        raise ValueError(f"scheduler must be a scheduler, such as adcs.ADCS(), got {scheduler!r}")
    if any(getattr(each, "accountant", None) is not None for each in chain(strategy)):
        raise ValueError(
            "a privacy accountant counts the nodes that its strategy addresses, which are all of "
            "them here; give the strategy no accountant"
        )


def check_mode(
    strategy: Strategy, clients_per_round: object, over_select: object, mode: object
) -> None:
    """Raise ValueError for settings of rounds that do not fit together, or the strategy.

    >>> from flwr.serverapp.strategy import FedAvg
    >>> check_mode(FedAvg(), None, None, None)
    Traceback (most recent call last):
    ...
    ValueError: clients_per_round must be given, got None
    """
    if over_select is not None:
        check_number("over_select", over_select, minimum=1)
        check_over_selection(strategy)
    if mode is None:
        if clients_per_round is None:
            raise ValueError("clients_per_round must be given, got None")
        return
    if not isinstance(mode, Buffered):
        raise ValueError(f"mode must be adcs.rounds.Buffered(size=..., ...), got {mode!r}")
    for name, value in (("clients_per_round", clients_per_round), ("over_select", over_select)):
        if value is not None:
            raise ValueError(
                f"{name} has no meaning with mode=Buffered, whose size and concurrency set how "
                f"many clients are asked, got {value!r}"
            )
    check_buffered(strategy)


def check_over_selection(strategy: Strategy) -> None:
    """Raise ValueError for a strategy whose replies cannot be those that arrive first.

    >>> from flwr.serverapp.strategy import FedAvg
    >>> check_over_selection(DifferentialPrivacyServerSideFixedClipping(FedAvg(), 1.0, 1.0, 2))
    Traceback (most recent call last):
    ...
    ValueError: over_select does not work with DifferentialPrivacyServerSideFixedClipping: its noise
    is calibrated to clients that are sampled without regard to their speed
    """
    for each in chain(strategy):
        if isinstance(each, PRIVATE):
            raise ValueError(
                f"over_select does not work with {type(each).__name__}: its noise is calibrated "
                "to clients that are sampled without regard to their speed"
            )


def check_buffered(strategy: Strategy) -> None:
    """Raise ValueError for a strategy that cannot aggregate re-based replies.

    >>> from flwr.serverapp.strategy import FedProx
    >>> check_buffered(FedProx(proximal_mu=0.1))
    >>> check_buffered(FedMedian())
    Traceback (most recent call last):
    ...
    ValueError: mode=Buffered works with FedAvg, FedProx, FedAvgM, FedAdam, FedYogi, FedAdagrad and
    strategies that aggregate by theirs, got FedMedian: an old reply cannot count less there
    """
    private = any(isinstance(each, PRIVATE) for each in chain(strategy))
    kinds = [kind for kind in type(strategy).__mro__ if "aggregate_train" in vars(kind)]
    flowers = next((kind for kind in kinds if kind.__module__.startswith("flwr.")), None)
    if private or flowers not in BUFFERED or not uses_flowers_aggregation(strategy):
        raise ValueError(
            "mode=Buffered works with FedAvg, FedProx, FedAvgM, FedAdam, FedYogi, FedAdagrad and "
            f"strategies that aggregate by theirs, got {type(strategy).__name__}: an old reply "
            "cannot count less there"
        )


def explain_error(reason: str) -> str | None:
    """Return what an error of a client means and what to do, if it is a known one.

    >>> explain_error("KeyError: 'secaggplus_configs'").split(":")[0]
    'the ClientApp uses secaggplus_mod'
    """
    for sign, meaning in KNOWN_ERRORS.items():
        if sign in reason:
            return meaning
    return None


KNOWN_ERRORS: dict[str, str] = {
    "secaggplus_configs": (
        "the ClientApp uses secaggplus_mod: SecAgg+ works only with Flower's legacy workflow, "
        "which does not run strategies of flwr.serverapp. Remove the mod; for privacy, the "
        "DifferentialPrivacy strategies and mods work with a scheduler"
    ),
    "expects exactly one ConfigRecord": (
        "a mod of the ClientApp expects one ConfigRecord, and probes and questions of the "
        "scheduler have one more, which probe_mod removes: put probe_mod first, as "
        "ClientApp(mods=[probe_mod, ...])"
    ),
    "requires the key 'clipping_norm'": (
        "a clipping mod of the ClientApp fails on messages without clipping_norm, as all "
        "evaluations are: give it to the train handler only, as "
        "@app.train(mods=[fixedclipping_mod]), and wrap the strategy in "
        "DifferentialPrivacyClientSideFixedClipping or -AdaptiveClipping"
    ),
    "fitins": (
        "the ClientApp is of Flower's legacy API (NumPyClient or client_fn): move its fit() into "
        "a function under @app.train() and its evaluate() under @app.evaluate(); "
        "docs/howto/flower.md shows how to migrate"
    ),
}
"""Parts of the reasons of errors, and what they mean."""
