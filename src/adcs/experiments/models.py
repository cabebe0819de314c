"""Models by name: "softmax", "mlp:64,32", "cnn", "my_file.py:Net(width=8)"."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, cast

from adcs._validation import brief, check_int, did_you_mean
from adcs.experiments.specs import SpecKind
from adcs.simulation.datasets import Dataset
from adcs.simulation.models import MLP, Model, factory_arguments
from adcs.simulation.settings import MILLION

DENSE = ("softmax", "mlp")
"""Models of dense layers, which are computed with NumPy."""

NETWORKS = ("cnn", "resnet8-gn", "char-gru")
"""PyTorch networks; `adcs.simulation.networks` has their classes."""

EXAMPLE = "softmax, mlp:64,32, cnn or file.py:Net"

MODEL = SpecKind("model", EXAMPLE, {})

INSTALL = "pip install 'adcs[torch]'"


def make_model(
    model: str | Callable[..., Any] | Model,
    data: Dataset,
    *,
    device: Literal["cpu", "cuda"] = "cpu",
    buffers: Literal["average", "keep"] = "average",
    compile: bool = False,
) -> Model:
    """Return the model of a spec for a data set.

    Parameters
    ----------
    model
        A name (`softmax`, `mlp:64,32`, `cnn`, `resnet8-gn`, `char-gru`), or one's own as
        `file.py:Net`: a class or function that returns a `torch.nn.Module`, or an object with the
        methods of `adcs.simulation.Model`. From Python also the class or function itself, or a
        model.
    data
        The data set. A class or function is called with those of the facts `input_shape`,
        `features`, `classes` and `vocabulary` that its signature names.
    device, buffers, compile
        See `adcs.simulation.TorchModel`.

    Examples
    --------
    >>> from adcs.simulation import load
    >>> make_model("mlp:64,32", load("digits")).widths
    (64, 64, 32, 10)
    >>> make_model("cnnn", load("digits"))
    Traceback (most recent call last):
    ...
    ValueError: unknown model 'cnnn'; did you mean cnn?
    """
    if _is_model(model):
        return cast(Model, model)
    if not isinstance(model, str):
        return _of_factory(
            cast(Callable[..., Any], model),
            {},
            data,
            device=device,
            buffers=buffers,
            compile=compile,
        )
    name, settings = check_model(model)
    if name in DENSE:
        if data.vocabulary is not None:
            raise ValueError(
                f"model {model!r} takes quantities, and the features of {data.name} are token ids; "
                "char-gru takes those"
            )
        return MLP(data.x_train.shape[1], data.classes, task=data.task, **settings)
    try:
        if name in NETWORKS:
            from adcs.simulation import networks

            factory: Callable[..., Any] = networks.NETWORKS[name]
        else:
            factory, settings = MODEL.read(model)
    except (ImportError, ValueError) as error:
        missing = error if isinstance(error, ImportError) else error.__cause__
        if isinstance(missing, ImportError) and missing.name == "torch":
            raise ValueError(f"model {model!r} needs PyTorch: {INSTALL}") from error
        raise
    made = MODEL.call(model, factory, settings, **factory_arguments(factory, data))
    if _is_model(made):
        return cast(Model, made)
    try:
        return _of_factory(factory, settings, data, device=device, buffers=buffers, compile=compile)
    except ValueError as error:
        raise ValueError(f"model {model!r}: {error}") from error


def check_model(spec: str) -> tuple[str, dict[str, Any]]:
    """Return the name of a shipped model and its settings; a user's own has no name.

    Nothing is loaded. A spec that can name no model raises ValueError.

    >>> check_model("mlp:64,32"), check_model("my_file.py:Net(width=8)")
    (('mlp', {'hidden': (64, 32)}), ('', {}))
    >>> check_model("mlp:64,x")
    Traceback (most recent call last):
    ...
    ValueError: model 'mlp:64,x' must look like softmax, mlp:64,32, cnn or file.py:Net
    """
    head, bracket, rest = spec.strip().partition("(")
    name, colon, sizes = (part.strip() for part in head.partition(":"))
    if name == "mlp" and not bracket:
        return name, {"hidden": _sizes(sizes, spec)}
    if colon or name.endswith(".py"):
        return "", {}
    if name not in (*DENSE, *NETWORKS):
        hint = did_you_mean(name, (*DENSE, *NETWORKS))
        raise ValueError(f"unknown model {brief(name)}; {hint}")
    settings = MODEL.parse(name.replace("-", "_") + bracket + rest, spec)[1]
    if name in DENSE and bracket:
        raise ValueError(f"model {brief(spec)} must look like {EXAMPLE}")
    return name, settings


def _sizes(text: str, spec: str) -> tuple[int, ...]:
    """Return the sizes of hidden layers."""
    try:
        sizes = [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"model {brief(spec)} must look like {EXAMPLE}") from None
    named = "the size of a hidden layer"
    return tuple(check_int(named, size, minimum=1, maximum=MILLION) for size in sizes)


def _is_model(value: Any) -> bool:
    """Return whether a value has the methods of `Model`."""
    methods = ("size", "initial", "loss_and_gradient", "predict")
    return not isinstance(value, type) and all(hasattr(value, name) for name in methods)


def _of_factory(
    factory: Callable[..., Any], settings: dict[str, Any], data: Dataset, **more: Any
) -> Model:
    """Return the model of a class or function that returns a network."""
    try:
        from adcs.simulation.torch_models import TorchModel
    except ModuleNotFoundError as error:
        raise ValueError(f"a network needs PyTorch: {INSTALL}") from error
    return TorchModel(factory, data, settings=settings, **more)
