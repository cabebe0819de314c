"""The module that computes for all clients: its parameters and gradients are flat tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from adcs._types import FloatArray


class Workspace:
    """A module whose trainable parameters and their gradients are views of flat tensors."""

    def __init__(
        self,
        module: torch.nn.Module,
        carried: Sequence[str],
        changed: Sequence[str],
        channels_last: bool,
    ) -> None:
        self.module = module
        self._parameters = trainable(module)
        self.flat = torch.cat([flatten(p, channels_last) for p in self._parameters.values()])
        self.gradient = torch.zeros_like(self.flat)
        self._gradients = []
        start = 0
        for parameter in self._parameters.values():
            end = start + parameter.numel()
            parameter.data = _unflatten(self.flat[start:end], parameter.shape, channels_last)
            parameter.grad = _unflatten(self.gradient[start:end], parameter.shape, channels_last)
            self._gradients.append(parameter.grad)
            start = end
        self._carried = carried
        self._reset = {
            name: module.get_buffer(name).clone() for name in changed if name not in carried
        }
        self.compiled: Callable[..., Any] | None = None

    def add_compiled(self, rows: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Add the gradient that the compiled function computes; return the loss."""
        assert self.compiled is not None
        parameters = {name: p.detach() for name, p in self._parameters.items()}
        gradients, loss = self.compiled(parameters, rows, labels)
        for total, gradient in zip(self._gradients, gradients.values(), strict=True):
            total.add_(gradient)
        found: torch.Tensor = loss
        return found

    def load(self, w: FloatArray) -> None:
        """Set parameters and statistics to those of a vector, and all other state as made."""
        vector = torch.from_numpy(w if w.flags.writeable else w.copy()).to(self.flat.device)
        start = self.flat.numel()
        self.flat.copy_(vector[:start])
        for name in self._carried:
            buffer = self.module.get_buffer(name)
            end = start + buffer.numel()
            buffer.copy_(vector[start:end].view(buffer.shape))
            start = end
        for name, value in self._reset.items():
            self.module.get_buffer(name).copy_(value)

    def vector(self, update: torch.Tensor) -> FloatArray:
        """Return an update followed by the statistics as they are now."""
        if self._carried:
            statistics = [self.module.get_buffer(name).reshape(-1) for name in self._carried]
            update = torch.cat([update, *statistics])
        values: FloatArray = update.cpu().numpy()
        return values


def trainable(module: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """Return the parameters that need a gradient, by name."""
    return {name: p for name, p in module.named_parameters() if p.requires_grad}


def flatten(values: torch.Tensor, channels_last: bool) -> torch.Tensor:
    """Return a parameter as a vector, the weights of a 2-D convolution in the given layout.

    >>> flatten(torch.arange(4).reshape(1, 2, 1, 2), channels_last=True)
    tensor([0, 2, 1, 3])
    """
    values = values.detach()
    last = channels_last and values.ndim == 4
    return (values.permute(0, 2, 3, 1) if last else values).reshape(-1)


def _unflatten(vector: torch.Tensor, shape: torch.Size, channels_last: bool) -> torch.Tensor:
    """Return a view of part of a vector in the shape of a parameter: the inverse of `flatten`."""
    if channels_last and len(shape) == 4:
        a, b, c, d = shape
        return vector.view(a, c, d, b).permute(0, 3, 1, 2)
    return vector.view(shape)


def shapes(module: torch.nn.Module, carried: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of trainable parameters and carried buffers, by name."""
    found = {name: tuple(p.shape) for name, p in trainable(module).items()}
    buffers = dict(module.named_buffers())
    return found | {name: tuple(buffers[name].shape) for name in carried if name in buffers}


@contextmanager
def one_thread() -> Iterator[None]:
    """Run PyTorch on one thread, and on as many as before afterwards."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def seeded(key: int, device: str) -> Iterator[None]:
    """Seed PyTorch's global random numbers, and restore their state afterwards."""
    # `torch.manual_seed` seeds every backend that there is, and takes a hundred times as long.
    state = torch.default_generator.get_state()
    torch.default_generator.manual_seed(key)
    if device == "cuda":
        torch.cuda.manual_seed(key)
    try:
        yield
    finally:
        torch.default_generator.set_state(state)
