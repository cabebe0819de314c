"""Usable reports as columns, in batches on the model of one round."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import compress, groupby

import numpy as np
from numpy.typing import NDArray

from adcs._types import ClientId, Float64Array, FloatArray
from adcs.reports.report import ClientReport
from adcs.reports.table import ReportTable
from adcs.schedulers.base import in_order
from adcs.schedulers.directions import Directions

Vectors = FloatArray | list[FloatArray | None]


@dataclass(frozen=True, eq=False)
class Batch:
    """Reports on the model of one round, by client id.

    Attributes
    ----------
    server_round
        The round of the model.
    clients
        The clients.
    losses
        Their losses, NaN for none.
    vectors
        Their updates or histograms: an array, or a list in which None is none.
    norms
        Norms of the updates.
    """

    server_round: int
    clients: Sequence[ClientId]
    losses: Float64Array
    vectors: Vectors
    norms: Float64Array

    def __len__(self) -> int:
        return len(self.clients)

    def take(self, mask: NDArray[np.bool_]) -> Batch:
        """Return the reports of a mask."""
        if mask.all():
            return self
        vectors = self.vectors
        return Batch(
            self.server_round,
            list(compress(self.clients, mask.tolist())),
            self.losses[mask],
            list(compress(vectors, mask)) if isinstance(vectors, list) else vectors[mask],
            self.norms[mask],
        )

    def stacked(self) -> tuple[NDArray[np.bool_], FloatArray | None]:
        """Return which clients have a vector, and these vectors, a row each."""
        if not isinstance(self.vectors, list):
            return np.ones(len(self), dtype=bool), self.vectors
        sent = np.array([vector is not None for vector in self.vectors])
        rows = [vector for vector in self.vectors if vector is not None]
        return sent, np.stack(rows) if rows else None


def in_batches(
    usable: Sequence[ClientReport], server_round: int, directions: Directions
) -> Iterator[Batch]:
    """Yield usable reports by the round of their model, not beyond the present one, then by id.

    >>> from adcs.schedulers.directions import UpdateDirections
    >>> reports = [ClientReport(c, 0, loss=1.0, update=[c, 1.0]) for c in (2, 1)]
    >>> [batch.clients for batch in in_batches(reports, 0, UpdateDirections())]
    [[1, 2]]
    """
    if isinstance(usable, ReportTable):
        yield _table_batch(usable, server_round)
        return

    def model_round(report: ClientReport) -> int:
        return min(int(report.server_round), server_round)

    ordered = sorted(usable, key=lambda r: (model_round(r), isinstance(r.client, str), r.client))
    for at, group in groupby(ordered, key=model_round):
        reports = list(group)
        norms = [1.0 if directions.sent_once else r.update_norm for r in reports]
        losses = [np.nan if r.loss is None else r.loss for r in reports]
        yield Batch(
            at,
            [report.client for report in reports],
            np.array(losses, dtype=np.float64),
            [directions.vector(report) for report in reports],
            np.array(norms, dtype=np.float64),
        )


def _table_batch(table: ReportTable, server_round: int) -> Batch:
    """Return a table of losses and sketches as a batch."""
    losses, sketches, norms = table.column("loss"), table.sketches, table.column("norm")
    assert losses is not None
    assert sketches is not None
    batch = Batch(
        min(int(table.server_round), server_round),
        table.clients,
        losses.astype(np.float64),
        sketches.values,
        sketches.norms if norms is None else norms.astype(np.float64),
    )
    ordered = in_order(table.clients)
    if tuple(ordered) == table.clients:
        return batch
    row = {client: i for i, client in enumerate(table.clients)}
    order = np.array([row[client] for client in ordered])
    return Batch(
        batch.server_round,
        ordered,
        batch.losses[order],
        sketches.values[order],
        batch.norms[order],
    )
