"""What outlives a newer report, and which vectors are taken for one."""

from __future__ import annotations

import numpy as np
import pytest

from adcs.reports.report import ClientReport, flatten, validate_report
from adcs.reports.store import ReportStore
from adcs.reports.table import ReportTable

FACTS = {"examples": 10, "compute_seconds": 2.0, "communication_seconds": 3.0}


@pytest.mark.parametrize("silent", FACTS)
def test_each_fact_is_kept_until_a_newer_one_comes(silent):
    book = ReportStore()
    newer = {name: 2 * value for name, value in FACTS.items() if name != silent}
    book.record([ClientReport("a", 0, loss=2.0, **FACTS)])
    book.record([ClientReport("a", 1, loss=1.0, **newer)])
    report = book["a"]
    assert (report.server_round, report.loss) == (1, 1.0)
    assert {name: getattr(report, name) for name in FACTS} == {**FACTS, **newer}


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("kind", [np.float64, np.float32])
def test_the_largest_entry_counts_whatever_its_sign(sign, kind):
    def why(*numbers):
        return validate_report(ClientReport(1, 0, update=sign * np.array(numbers, dtype=kind)))

    assert why(1.0, 0.0) is None
    assert why(1.0, 2.0) is None
    assert "must be finite" in why(np.inf, 0.5)
    assert "must be at most 1e+30" in why(2e30, 0.5)
    assert why(0.9e30, 0.5) is None


@pytest.mark.parametrize("groups", [((1, 2), (5, 6)), ((5, 6), (1, 2)), ((1, 2), (2, 3))])
def test_a_table_of_other_clients_leaves_the_one_before(groups):
    book = ReportStore()
    for server_round, clients in enumerate(groups):
        numbers = np.array([float(server_round), 9.0])
        facts = {"examples": np.array([3, 4]), "compute_seconds": numbers}
        book.record(
            ReportTable(clients, server_round, loss=numbers, communication_seconds=numbers, **facts)
        )
    assert set(book) == set(groups[0]) | set(groups[1])
    for client in set(groups[0]) - set(groups[1]):
        assert book[client].server_round == 0


@pytest.mark.parametrize("update", [[1, 2, 3, 4], np.array([[1, 2], [3, 4]]), (True, 2, 3, 4)])
def test_whole_numbers_become_floats(update):
    vector = flatten(update)
    assert vector.dtype == np.float64
    assert vector.tolist() == [1.0, 2.0, 3.0, 4.0]
