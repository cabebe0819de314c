"""Random sampling."""

from __future__ import annotations

from adcs import ClientReport
from adcs.reports.store import ReportStore
from adcs.schedulers.sampling import example_counts


def test_a_client_without_a_count_gets_the_mean_of_positive_counts():
    store = ReportStore()
    store.record([ClientReport(c, 0, examples=n) for c, n in (("a", 0), ("b", 10), ("c", 20))])
    assert example_counts(store, ["a", "b", "c", "d"]).tolist() == [0.0, 10.0, 20.0, 15.0]
