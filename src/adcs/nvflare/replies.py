"""Replies of NVFlare's clients as plain values: arrays, metrics and the weight of the average.

An `FLModel` holds the parameters in `params`, as a whole model or as its difference to the model
that was sent, `metrics` of the model that the client received, and the number of local steps in
`meta`, by which FedAvg weights. This module does not import NVFlare.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adcs.federated.messages import Arrays, Layout, PlainReply, Refused, SentModel, clean_text

WEIGHT_KEY = "NUM_STEPS_CURRENT_ROUND"
"""NVFlare's name of the number by which FedAvg weights; a reply without it has the weight 1."""

MAX_LIST = 100_000
"""A list of metrics with more numbers is left out."""


class FlareReply(PlainReply):
    """The reply of a client.

    Parameters
    ----------
    params
        The parameters by name.
    metrics, meta
        The metrics and the metadata of the reply.
    is_diff
        Whether the parameters are the difference to the model that was sent.
    answer, error
        The answer of `ProbeFilter`, and why there is no content.
    origin
        What the framework needs to pass the reply on.

    Examples
    --------
    >>> reply = FlareReply({"w": np.ones(2)}, {"loss": 0.5}, {WEIGHT_KEY: 3}, is_diff=True)
    >>> reply.arrays(SentModel({"w": np.ones(2)}))["w"], reply.metrics[WEIGHT_KEY]
    (array([2., 2.]), 3)
    """

    def __init__(
        self,
        params: Any = None,
        metrics: Any = None,
        meta: Mapping[str, Any] | None = None,
        *,
        is_diff: bool = False,
        answer: Mapping[str, Any] | None = None,
        error: str | None = None,
        origin: Any = None,
    ) -> None:
        self.is_diff = is_diff
        self.origin = origin
        self._unreadable = "reply must carry arrays, got none"
        arrays: Arrays | None = None
        if params is not None:
            try:
                arrays = read_params(params)
            except ValueError as refusal:
                self._unreadable = str(refusal)
        weight = (meta or {}).get(WEIGHT_KEY, 1.0)
        numbers = {**read_metrics(metrics), WEIGHT_KEY: _plain(weight)}
        super().__init__(arrays, numbers, answer, error)

    @property
    def layout(self) -> Layout:
        """The keys of the parameters, and whether they are a whole model or a difference."""
        kind = "DIFF" if self.is_diff else "FULL"
        return ((f"params {kind}", kind, tuple(sorted(self._arrays or {}))), ("metrics", "", ()))

    @property
    def params(self) -> Arrays:
        """The parameters as NVFlare aggregates them."""
        return dict(self._arrays or {})

    def arrays(self, model: SentModel) -> Arrays:
        """Return the arrays of the trained model, whichever way they were sent."""
        self.check_records(arrays=True)
        params = super().arrays(model)
        if not self.is_diff:
            return params
        return {key: _added(value, model.arrays.get(key)) for key, value in params.items()}

    def replace_arrays(self, arrays: Mapping[str, NDArray[Any]], model: SentModel) -> None:
        """Replace some of the arrays of the trained model."""
        if self.is_diff:
            arrays = {key: value - model.arrays[key] for key, value in arrays.items()}
        super().replace_arrays(arrays, model)

    def check_records(self, *, arrays: bool) -> None:
        """Raise `Refused` if arrays are expected and there are none that can be read."""
        if arrays and self._arrays is None:
            raise Refused("records", self._unreadable)


def _added(difference: NDArray[Any], sent: NDArray[Any] | None) -> NDArray[Any]:
    # NumPy would broadcast another shape; the check of shapes refuses it as it is.
    if sent is None or sent.shape != difference.shape:
        return difference
    return np.asarray(sent + difference)


def read_params(params: Any) -> Arrays:
    """Return a model's parameters as NumPy arrays, or raise ValueError.

    >>> read_params({"w": [1.0]})
    Traceback (most recent call last):
    ...
    ValueError: parameter 'w' must be a NumPy array, got list: exchange NumPy arrays with
    server_expected_format=ExchangeFormat.NUMPY
    """
    if not isinstance(params, Mapping):
        raise ValueError(f"params must be a dict of NumPy arrays, got {type(params).__name__}")
    arrays: Arrays = {}
    for key, value in params.items():
        if not isinstance(key, str):
            raise ValueError(f"names of parameters must be strings, got {clean_text(key, 40)}")
        is_array = isinstance(value, (np.ndarray, np.generic))
        if not is_array or np.asarray(value).dtype.kind not in "fiub":
            kind = str(value.dtype) if is_array else type(value).__name__
            raise ValueError(
                f"parameter {clean_text(key, 40)!r} must be a NumPy array, got {kind}: exchange "
                "NumPy arrays with server_expected_format=ExchangeFormat.NUMPY"
            )
        arrays[key] = np.asarray(value)
    return arrays


def read_metrics(metrics: Any) -> dict[str, Any]:
    """Return the metrics that are numbers or lists of numbers, as Python values.

    >>> read_metrics({"accuracy": np.float32(0.5), "labels": np.array([3, 1]), "table": {}})
    {'accuracy': 0.5, 'labels': [3, 1]}
    """
    if not isinstance(metrics, Mapping):
        return {}
    found: dict[str, Any] = {}
    for key, value in metrics.items():
        number = _plain(value)
        if isinstance(key, str) and isinstance(number, (int, float, list)):
            found[key] = number
    return found


def _plain(value: Any) -> Any:
    """Return a number or a list of numbers as Python values; None for a list that is neither."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        if value.ndim > 1 or value.size > MAX_LIST or value.dtype.kind not in "fiub":
            return None
        return value.tolist()
    if isinstance(value, (list, tuple)):
        numbers = [_plain(each) for each in value] if len(value) <= MAX_LIST else [None]
        return numbers if all(isinstance(each, (int, float)) for each in numbers) else None
    return value


def finite_metrics(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics without numbers that are not finite, which would spoil an average.

    >>> finite_metrics({"accuracy": 0.5, "loss": float("nan"), "note": "first"})
    {'accuracy': 0.5, 'note': 'first'}
    """

    def is_finite(value: Any) -> bool:
        number = _plain(value)
        return not isinstance(number, float) or math.isfinite(number)

    return {key: value for key, value in metrics.items() if is_finite(value)}
