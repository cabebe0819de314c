"""PyTorch networks as models: any `torch.nn.Module` as a flat vector of parameters.

One module serves all clients and runs. Its parameters are views of one flat tensor, and so are
their gradients, so a step of SGD is a few operations on vectors. All work runs on one thread,
because the bits of a convolution depend on the number of threads.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch.nn import functional

from adcs._hashing import hashes
from adcs._types import FloatArray
from adcs._validation import brief, check_choice
from adcs.simulation.datasets.dataset import Dataset
from adcs.simulation.models import Labels, NonFiniteLoss, factory_arguments
from adcs.simulation.scheduler_errors import OWN_ERRORS, describe_error
from adcs.simulation.torch_workspace import (
    Workspace,
    flatten,
    one_thread,
    seeded,
    shapes,
    trainable,
)

if TYPE_CHECKING:
    from adcs.simulation.local_training import LocalSGD

PREDICTED_AT_ONCE = 500
"""Examples in a batch of `predict` and `example_losses`."""

AGGREGATED_AT_ONCE = 100
"""Examples in a batch of an aggregate; larger batches of a CNN leave the processor's caches."""

TRIED = 2
"""Examples in the batch on which a new network is tried."""

Factory = Callable[..., torch.nn.Module]

Batch = tuple[FloatArray, Labels]


class TorchModel:
    """A PyTorch network as a model of the simulation.

    The factory is called with those of the arguments `input_shape`, `classes`, `features` and
    `vocabulary` that its signature names, and with `settings`. The network receives a batch of
    examples in the data set's shape: floats, or token ids (int64) where the data has a vocabulary.
    It returns one score for each class (logits), or one number for regression.

    Local steps run in training mode, predictions in evaluation mode. Random numbers that the
    network draws from PyTorch's global generator, as for dropout, follow from a key of (seed,
    round, client). The initial parameters follow from the seed.

    Statistics that training changes, such as BatchNorm's running means and variances, are the last
    `buffers` numbers of the vector. All other state (constants, parameters that need no gradient,
    counters such as `num_batches_tracked`) is that of the factory called with seed 0, at the start
    of each client's training and of each prediction.

    Parameters
    ----------
    factory
        A class or function that returns a new `torch.nn.Module` each time.
    data
        The data set to train on: it has the shape of an example, the vocabulary and the task.
    settings
        Further keyword arguments of the factory.
    buffers
        "average": statistics are averaged over the clients that trained. "keep": they stay as the
        factory made them.
    device
        "cpu" or "cuda". CUDA is untested.
    compile
        Compile the network with `torch.compile`, which needs a C++ compiler and half a minute. It
        pays in long runs of convolutional networks.

    Attributes
    ----------
    size : int
        The length of the vector: trainable parameters and, after them, statistics.
    buffers : int
        The number of statistics.
    keyed : bool
        Whether the network draws random numbers in training.
    output_bias : slice or None
        Where the bias of the output is in the vector.
    sums_gradients : bool
        Whether `weighted_gradient` can be used: each example's output depends on no other example
        and on no random number.

    Raises
    ------
    ValueError
        If the factory fails or the network does not fit the data.

    Examples
    --------
    >>> from adcs.simulation import load
    >>> def net(features, classes):
    ...     return torch.nn.Sequential(torch.nn.Dropout(0.1), torch.nn.Linear(features, classes))
    >>> model = TorchModel(net, load("digits"))
    >>> model.size, model.buffers, model.keyed, model.output_bias
    (650, 0, True, slice(640, 650, None))
    >>> TorchModel(torch.nn.Flatten, load("digits"))
    Traceback (most recent call last):
    ...
    ValueError: network Flatten must return a score for each class: shape (2, 10), got (2, 64)
    """

    def __init__(
        self,
        factory: Factory,
        data: Dataset,
        *,
        settings: Mapping[str, Any] | None = None,
        buffers: Literal["average", "keep"] = "average",
        device: Literal["cpu", "cuda"] = "cpu",
        compile: bool = False,
    ) -> None:
        check_choice("buffers", buffers, ("average", "keep"))
        check_choice("device", device, ("cpu", "cuda"))
        if device == "cuda" and not torch.cuda.is_available():
            raise ValueError("device cuda is not available: PyTorch finds no GPU")
        if not callable(factory) or isinstance(factory, torch.nn.Module):
            raise ValueError(
                "a network must be a class or function that returns a new torch.nn.Module, got "
                f"{brief(factory)}"
            )
        self.name = getattr(factory, "__name__", type(factory).__name__)
        self._factory = factory
        self._arguments = factory_arguments(factory, data) | dict(settings or {})
        self._shape = tuple(data.input_shape)
        self._vocabulary = data.vocabulary
        self._regression = getattr(data, "task", "classification") == "regression"
        self._outputs = data.classes
        self._device = torch.device(device)
        self._compile = compile
        self._workspaces: dict[torch.dtype, Workspace] = {}
        with one_thread(), seeded(0, "cpu"):
            module = self._new_module()
            changed, self.keyed, couples = self._try_training(module)
            self.output_bias = self._find_output_bias(module)
            self._channels_last = self._allows_channels_last(module)
            self._first = module
        parameters = trainable(module)
        self._changed = tuple(changed)
        self._carried = tuple(
            name
            for name in changed
            if buffers == "average" and module.get_buffer(name).is_floating_point()
        )
        self._shapes = shapes(module, self._carried)
        self.buffers = sum(module.get_buffer(name).numel() for name in self._carried)
        self.size = sum(p.numel() for p in parameters.values()) + self.buffers
        if compile and (self.keyed or self._changed):
            raise ValueError(
                f"network {self.name} cannot be compiled: it draws random numbers or keeps "
                "statistics in training"
            )
        self.sums_gradients = not (self.keyed or couples or self._changed)

    def initial(self, seed: int) -> FloatArray:
        """Return the parameters and statistics of a new network, made with this seed."""
        with one_thread(), seeded(int(hashes(seed, 0x1417)), "cpu"):
            module = self._new_module()
        if module is self._first:
            raise ValueError(f"network {self.name} must be made anew at each call of its factory")
        self._check_shapes(module)
        parts = [flatten(p, self._channels_last) for p in trainable(module).values()]
        parts += [module.get_buffer(name).reshape(-1) for name in self._carried]
        vector: FloatArray = torch.cat(parts).numpy()
        return vector

    def network(self, w: FloatArray) -> torch.nn.Module:
        """Return a network of its own with these parameters, on the CPU and in evaluation mode."""
        with self._workspace(w, training=False) as space:
            return copy.deepcopy(space.module).cpu()

    def loss_and_gradient(
        self, w: FloatArray, x: FloatArray, y: Labels, key: int = 0
    ) -> tuple[float, FloatArray]:
        """Return the mean loss over a batch in training mode and its gradient.

        The last `buffers` entries hold the statistics after this batch.
        """
        with self._workspace(w, training=True, key=key) as space:
            space.gradient.zero_()
            loss = self._finite(self._add_gradient(space, x, y))
            return loss, space.vector(space.gradient.clone())

    def local_update(
        self, w: FloatArray, batches: Iterable[Batch], sgd: LocalSGD, key: int
    ) -> tuple[float, FloatArray]:
        """Return the loss before the first step and the update of all local steps of one client.

        Parameters
        ----------
        w
            The parameters that the client starts from.
        batches
            The examples and labels of each step.
        sgd
            Learning rate, momentum, weight decay, proximal term and clipping.
        key
            Seed of the random numbers that the network draws.
        """
        with self._workspace(w, training=True, key=key) as space:
            plain = not (sgd.momentum or sgd.weight_decay or sgd.prox or sgd.clip is not None)
            run_steps = self._plain_steps if plain else self._steps
            first, update = run_steps(space, list(batches), sgd)
            return first, space.vector(update)

    def _plain_steps(
        self, space: Workspace, batches: Sequence[Batch], sgd: LocalSGD
    ) -> tuple[float, torch.Tensor]:
        """Run steps of which each is the gradient alone; gradients are summed as they arise."""
        first: torch.Tensor | float = math.nan
        start = space.flat.clone() if len(batches) > 1 else space.flat
        space.gradient.zero_()
        for step, (x, y) in enumerate(batches):
            if step:
                torch.add(start, space.gradient, alpha=-sgd.lr, out=space.flat)
            loss = self._add_gradient(space, x, y)
            first = loss if step == 0 else first
        return self._finite(first), space.gradient.clone()

    def _steps(
        self, space: Workspace, batches: Sequence[Batch], sgd: LocalSGD
    ) -> tuple[float, torch.Tensor]:
        """Run steps of SGD with all its terms."""
        first: torch.Tensor | float = math.nan
        start, local, gradient = space.flat.clone(), space.flat, space.gradient
        total, velocity = torch.zeros_like(start), torch.zeros_like(start)
        for step, (x, y) in enumerate(batches):
            gradient.zero_()
            loss = self._add_gradient(space, x, y)
            first = loss if step == 0 else first
            if sgd.prox:
                gradient.add_(local - start, alpha=sgd.prox)
            if sgd.clip is not None and (norm := float(gradient.norm())) > sgd.clip:
                gradient.mul_(sgd.clip / norm)
            if sgd.weight_decay:
                gradient.add_(local, alpha=sgd.weight_decay)
            velocity.mul_(sgd.momentum).add_(gradient)
            total.add_(velocity)
            local.sub_(velocity, alpha=sgd.lr)
        return self._finite(first), total

    def weighted_gradient(
        self,
        w: FloatArray,
        batches: Sequence[Batch],
        weights: FloatArray,
    ) -> tuple[FloatArray, FloatArray]:
        """Return the loss of each client's batch and the weighted sum of their gradients.

        Several clients' batches pass through the network as one, which is faster than one after
        the other. It is what an aggregate of single steps needs; `sums_gradients` says whether the
        network allows it.

        Parameters
        ----------
        w
            The parameters.
        batches
            A batch of each client.
        weights
            A weight for each client.
        """
        losses: list[float] = []
        with self._workspace(w, training=True) as space:
            space.gradient.zero_()
            for part in _chunks([len(y) for _, y in batches]):
                x, y = (np.concatenate(each) for each in zip(*batches[part], strict=True))
                counts = [len(labels) for _, labels in batches[part]]
                labels = self._labels(y, space.flat.dtype)
                each = self._losses(self._call(space.module, self._rows(space, x)), labels)
                shares = np.repeat(weights[part] / counts, counts).astype(w.dtype)
                weighted = torch.dot(each, torch.from_numpy(shares).to(self._device))
                self._backward(weighted, len(y))
                own = np.split(each.detach().cpu().numpy(), np.cumsum(counts)[:-1])
                losses += [self._finite(one.mean(), len(losses) + i) for i, one in enumerate(own)]
            return np.array(losses), space.vector(space.gradient.clone())

    def predict(self, w: FloatArray, x: FloatArray) -> FloatArray:
        """Return the logits, or the predicted numbers, in evaluation mode."""
        outputs: FloatArray = np.concatenate(list(self._outputs_of(w, x)))
        return outputs

    def example_losses(self, w: FloatArray, x: FloatArray, y: Labels) -> FloatArray:
        """Return the loss of each example in evaluation mode."""
        found = []
        for part, outputs in zip(_parts(len(x)), self._outputs_of(w, x), strict=True):
            labels = self._labels(y[part], torch.float64)
            found.append(self._losses(torch.from_numpy(outputs).double(), labels).numpy())
        losses: FloatArray = np.concatenate(found).astype(w.dtype)
        return losses

    def _outputs_of(self, w: FloatArray, x: FloatArray) -> Iterator[FloatArray]:
        with self._workspace(w, training=False) as space, torch.no_grad():
            for part in _parts(len(x)):
                outputs = self._call(space.module, self._rows(space, x[part]))
                yield outputs.cpu().numpy()

    def _new_module(self) -> torch.nn.Module:
        """Return a new network that has passed a batch; errors are one sentence."""
        try:
            module = self._factory(**self._arguments)
        except OWN_ERRORS as error:
            raise ValueError(
                f"network {self.name} cannot be made: {describe_error(error)}"
            ) from error
        if not isinstance(module, torch.nn.Module):
            raise ValueError(f"network {self.name} must be a torch.nn.Module, got {brief(module)}")
        module.float()  # the format of the batch; a run converts both to its own
        # A first batch gives lazy layers their shapes.
        module.eval()
        with torch.no_grad():
            outputs = self._call(module, self._random_batch())
        if not any(p.requires_grad for p in module.parameters()):
            raise ValueError(f"network {self.name} has no parameters to train")
        if not all(p.is_floating_point() for p in module.parameters()):
            raise ValueError(f"network {self.name} has parameters that are not real numbers")
        if not bool(torch.isfinite(outputs).all()):
            raise ValueError(f"network {self.name} returns values that are not finite")
        return module

    def _random_batch(self, seed: int = 0) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        shape = (TRIED, *self._shape)
        if self._vocabulary is None:
            return torch.rand(shape, generator=generator)
        return torch.randint(self._vocabulary, shape, generator=generator)

    def _try_training(self, module: torch.nn.Module) -> tuple[list[str], bool, bool]:
        """Return which buffers a training batch changes, and two properties of the network.

        They are whether it draws random numbers in training, and whether an example's output
        depends on the other examples of its batch.
        """
        module.train()
        before = {name: buffer.clone() for name, buffer in module.named_buffers()}
        batch, other = self._random_batch(), self._random_batch(seed=1)
        other[0] = batch[0]
        state = torch.default_generator.get_state()
        with torch.no_grad():
            outputs = self._call(module, batch)
            drew = not torch.equal(state, torch.default_generator.get_state())
            torch.default_generator.set_state(state)
            again = self._call(module, other)
        couples = not torch.allclose(outputs[0], again[0], rtol=1e-4, atol=1e-6)
        changed = []
        for name, value in before.items():
            if not torch.equal(module.get_buffer(name), value):
                changed.append(name)
                module.get_buffer(name).copy_(value)
        return changed, drew, couples

    def _find_output_bias(self, module: torch.nn.Module) -> slice | None:
        """Return where the parameters are that are added to the outputs as they are."""
        module.eval()
        outputs = self._call(module, self._random_batch())
        outside = torch.rand(outputs.shape, generator=torch.Generator().manual_seed(2))
        parameters = trainable(module)
        gradients = torch.autograd.grad(
            (outputs * outside).sum(), list(parameters.values()), allow_unused=True
        )
        found, start = None, 0
        for gradient, parameter in zip(gradients, parameters.values(), strict=True):
            end = start + parameter.numel()
            fits = gradient is not None and gradient.shape == outside.shape[1:]
            if fits and torch.allclose(gradient, outside.sum(0)):
                found = slice(start, end)
            start = end
        return found

    def _allows_channels_last(self, module: torch.nn.Module) -> bool:
        """Return whether the network can compute with the channels of images last in memory.

        Convolutions are 1.2 to 1.8 times as fast in that layout. Networks that use `view` on the
        outputs of a convolution fail in it.
        """
        if all(p.ndim != 4 for p in trainable(module).values()):
            return False
        other: Any = copy.deepcopy(module)
        other.to(memory_format=torch.channels_last)
        try:
            torch.autograd.backward(self._call(other, self._random_batch()).sum())
        except (ValueError, RuntimeError):
            return False
        return True

    def _check_shapes(self, module: torch.nn.Module) -> None:
        found = shapes(module, self._carried)
        for name in {**self._shapes, **found}:
            if self._shapes.get(name) != found.get(name):
                raise ValueError(
                    f"network {self.name} differs from call to call of its factory: {name} has "
                    f"shape {self._shapes.get(name)} and then {found.get(name)}"
                )

    @contextmanager
    def _workspace(self, w: FloatArray, *, training: bool, key: int = 0) -> Iterator[Workspace]:
        """Set up the module with parameters `w`, on one thread, with the key's random numbers."""
        with one_thread():
            space = self._workspaces.get(_DTYPES[w.dtype])
            if space is None:
                with seeded(0, "cpu"):
                    module = self._new_module()
                self._check_shapes(module)
                module = module.to(self._device, _DTYPES[w.dtype])
                space = Workspace(module, self._carried, self._changed, self._channels_last)
                if self._compile:
                    space.compiled = self._compiled(module)
                self._workspaces[_DTYPES[w.dtype]] = space
            space.load(w)
            space.module.train(training)
            if training and self.keyed:
                with seeded(key, self._device.type):
                    yield space
            else:
                yield space

    def _rows(self, space: Workspace, x: FloatArray) -> torch.Tensor:
        """Return examples as the network takes them."""
        rows = torch.from_numpy(x if x.flags.writeable else x.copy())
        kind = torch.int64 if self._vocabulary is not None else space.flat.dtype
        return rows.reshape(len(x), *self._shape).to(self._device, kind)

    def _call(self, module: Callable[..., Any], rows: torch.Tensor) -> torch.Tensor:
        """Return the outputs of a network: examples x classes."""
        try:
            outputs = module(rows)
        except OWN_ERRORS as error:
            raise ValueError(
                f"network {self.name} fails on a batch of shape {tuple(rows.shape)}: "
                f"{describe_error(error)}"
            ) from error
        expected = (len(rows), self._outputs)
        if isinstance(outputs, torch.Tensor) and outputs.is_floating_point():
            if outputs.shape == expected:
                return outputs
            if self._outputs == 1 and outputs.shape == expected[:1]:
                return outputs[:, None]
            got = str(tuple(outputs.shape))
        else:
            got = brief(outputs)
        what = "one number for each example" if self._regression else "a score for each class"
        raise ValueError(f"network {self.name} must return {what}: shape {expected}, got {got}")

    def _labels(self, y: Labels, dtype: torch.dtype) -> torch.Tensor:
        kind = dtype if self._regression else torch.int64
        return torch.as_tensor(y).to(self._device, kind)

    def _losses(
        self, outputs: torch.Tensor, labels: torch.Tensor, reduction: str = "none"
    ) -> torch.Tensor:
        if self._regression:
            return functional.mse_loss(outputs[:, 0], labels, reduction=reduction)
        return functional.cross_entropy(outputs, labels, reduction=reduction)

    def _add_gradient(self, space: Workspace, x: FloatArray, y: Labels) -> torch.Tensor:
        """Add the gradient of the mean loss over a batch to the workspace's; return the loss."""
        rows, labels = self._rows(space, x), self._labels(y, space.flat.dtype)
        if space.compiled is not None:
            return space.add_compiled(rows, labels)
        loss = self._losses(self._call(space.module, rows), labels, "mean")
        self._backward(loss, len(y))
        return loss.detach()

    def _backward(self, loss: torch.Tensor, examples: int) -> None:
        """Add the gradient of a loss to the workspace's; errors are one sentence."""
        try:
            torch.autograd.backward(loss)
        except OWN_ERRORS as error:
            raise ValueError(
                f"network {self.name} has no gradient on a batch of {examples} examples: "
                f"{describe_error(error)}"
            ) from error

    def _compiled(self, module: torch.nn.Module) -> Callable[..., Any]:
        """Return a compiled function from (parameters, rows, labels) to (gradients, loss)."""

        def loss(
            parameters: dict[str, torch.Tensor], rows: torch.Tensor, labels: torch.Tensor
        ) -> torch.Tensor:
            outputs = torch.func.functional_call(module, parameters, (rows,))
            return self._losses(outputs.reshape(len(rows), -1), labels, "mean")

        compiled: Callable[..., Any] = torch.compile(torch.func.grad_and_value(loss))
        return compiled

    def _finite(self, loss: torch.Tensor | float, batch: int = 0) -> float:
        value = float(loss)
        if not math.isfinite(value):
            raise NonFiniteLoss(f"the loss of network {self.name} is {value}", batch)
        return value


_DTYPES = {np.dtype(np.float32): torch.float32, np.dtype(np.float64): torch.float64}


def _parts(examples: int) -> list[slice]:
    """Return the batches in which examples are predicted; an empty one if there are none."""
    starts = range(0, max(examples, 1), PREDICTED_AT_ONCE)
    return [slice(start, start + PREDICTED_AT_ONCE) for start in starts]


def _chunks(sizes: Sequence[int]) -> list[slice]:
    """Return runs of batches, each of at most `AGGREGATED_AT_ONCE` examples or of one batch.

    >>> _chunks([60, 40, 20, 200])
    [slice(0, 2, None), slice(2, 3, None), slice(3, 4, None)]
    """
    bounds, examples = [0], 0
    for index, size in enumerate(sizes):
        if index > bounds[-1] and examples + size > AGGREGATED_AT_ONCE:
            bounds.append(index)
            examples = 0
        examples += size
    return [slice(a, b) for a, b in pairwise([*bounds, len(sizes)])] if sizes else []
