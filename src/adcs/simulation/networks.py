"""Networks that ship with the package: `cnn`, `resnet8-gn` and `char-gru`."""

from __future__ import annotations

import torch
from torch import nn

CHANNELS = (1, 3, 4)
"""Numbers of channels by which the axis of channels of an image is recognised."""


class CNN(nn.Module):
    """Two 3 x 3 convolutions, each with ReLU and 2 x 2 max pooling, and one dense layer.

    Parameters
    ----------
    input_shape
        The shape of an image: (height, width), or with an axis of channels first or last.
    classes
        The number of outputs.
    channels
        The channels of the two convolutions.

    Examples
    --------
    >>> sum(p.numel() for p in CNN((32, 32, 3), 10).parameters())
    25578
    >>> CNN((28, 28), 10)(torch.zeros(5, 28, 28)).shape
    torch.Size([5, 10])
    """

    def __init__(
        self, input_shape: tuple[int, ...], classes: int, channels: tuple[int, int] = (16, 32)
    ) -> None:
        super().__init__()
        self.images = Images(input_shape)
        first, second = channels
        self.layers = nn.Sequential(
            nn.Conv2d(self.images.channels, first, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(first, second, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
        )
        pixels = (self.images.height // 4) * (self.images.width // 4)
        self.output = nn.Linear(second * pixels, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        logits: torch.Tensor = self.output(self.layers(self.images(x)))
        return logits


class ResNet8(nn.Module):
    """ResNet-8 with GroupNorm: a convolution, three residual blocks and one dense layer.

    Reference: K. Hsieh et al., "The Non-IID Data Quagmire of Decentralized Machine Learning",
    ICML 2020, for GroupNorm in place of BatchNorm.

    Parameters
    ----------
    input_shape
        The shape of an image: (height, width), or with an axis of channels first or last.
    classes
        The number of outputs.
    width
        The channels of the first block; each further block has twice as many.
    groups
        The groups of each GroupNorm.

    Examples
    --------
    >>> sum(p.numel() for p in ResNet8((32, 32, 3), 10).parameters())
    78042
    >>> ResNet8((28, 28), 10)(torch.zeros(5, 28, 28)).shape
    torch.Size([5, 10])
    """

    def __init__(
        self, input_shape: tuple[int, ...], classes: int, width: int = 16, groups: int = 8
    ) -> None:
        super().__init__()
        self.images = Images(input_shape)
        self.stem = nn.Sequential(
            nn.Conv2d(self.images.channels, width, 3, padding=1, bias=False),
            nn.GroupNorm(groups, width),
            nn.ReLU(),
        )
        self.blocks = nn.Sequential(
            ResidualBlock(width, width, 1, groups),
            ResidualBlock(width, 2 * width, 2, groups),
            ResidualBlock(2 * width, 4 * width, 2, groups),
        )
        self.output = nn.Linear(4 * width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        features = self.blocks(self.stem(self.images(x)))
        logits: torch.Tensor = self.output(features.mean(dim=(2, 3)))
        return logits


class ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions with GroupNorm, added to their input.

    Examples
    --------
    >>> ResidualBlock(8, 16, stride=2, groups=4)(torch.zeros(1, 8, 6, 6)).shape
    torch.Size([1, 16, 3, 3])
    """

    def __init__(self, inputs: int, outputs: int, stride: int, groups: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
            nn.GroupNorm(groups, outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.GroupNorm(groups, outputs),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.GroupNorm(groups, outputs)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's outputs."""
        return torch.relu(self.layers(x) + self.shortcut(x))


class CharGRU(nn.Module):
    """An embedding, a GRU and one dense layer on its last state.

    Parameters
    ----------
    vocabulary
        The number of tokens.
    classes
        The number of outputs.
    embedding
        The size of the embedding.
    hidden
        The size of the GRU's state.

    Examples
    --------
    >>> CharGRU(vocabulary=80, classes=80)(torch.zeros(5, 20, dtype=torch.int64)).shape
    torch.Size([5, 80])
    """

    def __init__(
        self, vocabulary: int | None, classes: int, embedding: int = 8, hidden: int = 128
    ) -> None:
        super().__init__()
        if vocabulary is None:
            raise ValueError("it takes token ids, and the data has no vocabulary")
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.gru = nn.GRU(embedding, hidden, batch_first=True)
        self.output = nn.Linear(hidden, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        states, _ = self.gru(self.embedding(x))
        logits: torch.Tensor = self.output(states[:, -1])
        return logits


class Images(nn.Module):
    """Images of any layout, as a batch with the axis of channels second.

    Parameters
    ----------
    input_shape
        The shape of an image: (height, width), or with an axis of 1, 3 or 4 channels first or
        last.

    Raises
    ------
    ValueError
        If an example of this shape is no image.

    Examples
    --------
    >>> Images((32, 24, 3))(torch.zeros(5, 32, 24, 3)).shape
    torch.Size([5, 3, 32, 24])
    >>> Images((64,))
    Traceback (most recent call last):
    ...
    ValueError: it takes images of at least 4 x 4 pixels, and an example has shape (64,)
    """

    def __init__(self, input_shape: tuple[int, ...]) -> None:
        super().__init__()
        shape = tuple(input_shape)
        self.channels_last = False
        if len(shape) == 2:
            shape = (1, *shape)
        elif len(shape) == 3 and shape[0] not in CHANNELS and shape[2] in CHANNELS:
            self.channels_last = True
            shape = (shape[2], *shape[:2])
        if len(shape) != 3 or min(shape[1:]) < 4:
            raise ValueError(
                "it takes images of at least 4 x 4 pixels, and an example has shape "
                f"{tuple(input_shape)}"
            )
        self.channels, self.height, self.width = shape

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the images as batch x channels x height x width."""
        if self.channels_last:
            return x.permute(0, 3, 1, 2)
        return x.reshape(len(x), self.channels, self.height, self.width)


NETWORKS = {"cnn": CNN, "resnet8-gn": ResNet8, "char-gru": CharGRU}
"""The networks by the names that specs of models have for them."""
