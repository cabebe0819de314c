"""A table has the same effect as the list of its reports."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from adcs._serialization import pack, unpack
from adcs.reports import store as store_module
from adcs.reports.report import ClientReport
from adcs.reports.sketch import Sketch, Sketcher, Sketches
from adcs.reports.store import ReportStore
from adcs.reports.table import ReportTable, tabulate
from adcs.schedulers import ADCS


def table(clients=(1, 2, 3), server_round=0, **changes):
    """A table with every signal but the sketch, up to changes."""
    n = len(clients)
    columns = {
        "loss": np.linspace(0.5, 2.5, n, dtype=np.float32),
        "norm": np.linspace(1.0, 3.0, n),
        "update": np.arange(1.0, 4 * n + 1, dtype=np.float32).reshape(n, 4),
        "examples": np.arange(10, 10 + n),
        "compute_seconds": np.full(n, 0.5),
        "communication_seconds": np.full(n, 2.0),
    }
    return ReportTable(clients, server_round, **{**columns, **changes})


def contents(store):
    """Everything in a store, as values that compare."""
    state = store.state()
    return {**state, "vectors": state["vectors"].tolist(), "version": None}


def test_reads_as_reports():
    reports = table((4, "x"))
    assert len(reports) == len(list(reports)) == 2
    assert [report.client for report in reports[:]] == [4, "x"]
    one = reports[1]
    assert (one.loss, one.norm, one.examples, one.compute_seconds) == (2.5, 3.0, 11, 0.5)
    assert all(type(v) in (int, float) for v in (one.loss, one.norm, one.examples))
    np.testing.assert_array_equal(one.vector, [5.0, 6.0, 7.0, 8.0])
    assert list(ReportTable((), 0)) == []


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"update": None, "norm": None},
        {"loss": None, "update": None, "norm": None},
        {"examples": None},
        {"loss": np.array([1.0, np.nan, 2.0])},
        {"loss": np.array([-1.0, 0.0, np.inf])},
        {"norm": np.array([1.0, -1.0, 1e31])},
        {"communication_seconds": np.array([1.0, -1.0, np.nan])},
        {"update": np.array([[1.0, 1.0], [0.0, 0.0], [1.0, np.nan]])},
        {"update": np.array([[1e31, 1.0], [0.0, -1.0], [-np.inf, 1.0]])},
        {"update": np.ones((3, 5), dtype=np.float16)},
        {"update": np.ones((3, 4), dtype=np.int64)},
        {"update": np.array([["a"], ["b"], ["c"]])},
        {"update": np.ones((3, 0))},
        {"update": None, "loss": np.array([1.0, 2.0, None])},
        {"update": None, "loss": np.array(["a", "b", "c"])},
        {"update": None, "loss": np.array([1j, 2.0, 3.0])},
        {"update": None, "loss": np.ones((3, 1))},
        {"update": None, "loss": [1.0, 2.0, 3.0]},
        {"update": None, "loss": np.array([1.0, np.nan, 2.0])},
        {"update": None, "loss": np.array([-1.0, 0.0, np.inf])},
        {"update": None, "clients": (1, 1, 2)},
        {"update": None, "clients": (1, True, 2.5)},
        {"update": None, "clients": (7, 8, 9)},
        {"update": None, "server_round": -1},
        {"update": None, "server_round": 1.5},
        {"update": None, "server_round": None},
        {"clients": (1, 1, 2)},
        {"clients": (1, True, 2.5)},
        {"clients": (7, 8, 9)},
        {"server_round": -1},
    ],
    ids=str,
)
@pytest.mark.parametrize("before", [None, (1, 2, 3), (2, 3, 4)])
def test_a_store_takes_a_table_like_a_list(changes, before):
    stores, refused = (ReportStore(), ReportStore()), []
    for store, kind in zip(stores, (lambda t: t, list), strict=True):
        store.record([ClientReport(2, 0, examples=99, compute_seconds=7.0)])
        if before is not None:
            store.record(kind(table(before, update=np.ones((3, 4), dtype=np.float32))))
        refused.append(store.record(kind(table(**{"server_round": 1, **changes}))))
    assert refused[0] == refused[1]
    for name in ("loss", "update_norm"):
        clients, numbers = zip(
            *(store.fresh_values(name, 1, (1, 2, 3)) for store in stores), strict=True
        )
        assert clients[0] == clients[1]
        np.testing.assert_array_equal(*numbers)
    assert stores[0].width == stores[1].width
    assert stores[0].version == stores[1].version
    assert contents(stores[0]) == contents(stores[1])


def test_columns_are_checked():
    with pytest.raises(ValueError, match="norm must hold one entry for each of 3"):
        table(norm=np.ones(2))
    with pytest.raises(ValueError, match=r"columns must be signals \(loss, .*, got 'lss'"):
        table(lss=np.ones(3))


def test_arrays_are_copied_in_and_out():
    store, buffer = ReportStore(), np.ones((3, 4))
    store.record(table(update=buffer, norm=None))
    buffer[:] = 7.0
    np.testing.assert_array_equal(store[2].vector, np.ones(4))
    store.record(table(update=None, loss=np.array([3.0, 4.0, 5.0])))
    store.fresh_values("loss", 0, (1, 2, 3))[1][:] = 0.0
    assert store[1].loss == 3.0


def test_a_state_has_the_newest_table():
    store, twin = ReportStore(), ReportStore()
    store.record(table((1, 2, 3), 4, update=None))
    twin.restore(unpack(pack(store.state())))
    assert contents(twin) == contents(store)
    twin.record(table((1, 2, 3), 9, update=None))
    twin.restore(unpack(pack(store.state())))
    assert twin[2].server_round == 4


@pytest.mark.parametrize("groups", [((1, 2), (5, 6)), ((5, 6), (1, 2)), ((1, 2), (2, 3))])
def test_a_table_of_other_clients_keeps_the_one_before(groups):
    store = ReportStore()
    for server_round, clients in enumerate(groups):
        numbers = np.array([float(server_round), 9.0])
        facts = {"examples": np.array([3, 4]), "compute_seconds": numbers}
        store.record(
            ReportTable(clients, server_round, loss=numbers, communication_seconds=numbers, **facts)
        )
    assert set(store) == set(groups[0]) | set(groups[1])
    for client in set(groups[0]) - set(groups[1]):
        assert store[client].server_round == 0


def test_a_table_is_kept_in_plain_numbers():
    numbers = ReportTable(
        (1, 2),
        0,
        loss=np.array([1, 2], dtype=np.longdouble),
        examples=np.array([3.0, 4.0]),
        compute_seconds=np.array([1, 2]),
        communication_seconds=np.ones(2, dtype=np.float16),
    )
    store, twin = ReportStore(), ReportStore()
    assert store.record(numbers) == []
    twin.record(list(numbers))
    assert pack(store.state()) == pack(twin.state())
    assert type(store[1].loss) is float
    assert type(store[1].examples) is int


def test_rows_of_a_table_are_plain_beside_facts_that_it_lacks():
    store = ReportStore()
    store.record([ClientReport(1, 0, examples=3)])
    store.record(ReportTable((1, 2), 0, loss=np.array([1, 2], dtype=np.longdouble)))
    assert type(store[1].loss) is type(store[2].loss) is float
    assert store[1].examples == 3
    pack(store.state())


def test_a_bounded_number_above_its_bound_is_not_valid():
    columns = {"loss": np.ones(2), "held_out_accuracy": np.array([0.5, 1.5])}
    assert not ReportTable((1, 2), 0, **columns).is_valid
    columns["held_out_accuracy"] = np.array([0.5, 1.0])
    assert ReportTable((1, 2), 0, **columns).is_valid


def test_a_column_of_one_vector_per_client():
    table = ReportTable((1, 2), 0, label_counts=np.array([[1.0, 2.0], [3.0, 4.0]]))
    assert not table.is_columnar
    assert table[1].label_counts.tolist() == [3.0, 4.0]


def sketched(clients=(1, 2, 3), server_round=0, values=None, norms=None, size=9, **changes):
    """Two tables of the same sketches: as arrays, and as a list."""
    rng = np.random.default_rng(server_round)
    n = len(clients)
    values = rng.standard_normal((n, 4), dtype=np.float32) if values is None else values
    norms = np.linspace(1.0, 2.0, n) if norms is None else norms
    columns = Sketches(values, norms, size)
    both = (columns, [Sketch(*pair, size) for pair in zip(values, norms.tolist(), strict=True)])
    changes = {"update": None, "norm": None, **changes}
    return [table(clients, server_round, sketch=column, **changes) for column in both]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"loss": np.array([1.0, np.nan, 2.0])},
        {"values": np.array([[1.0, 0.0], [0.0, 0.0], [2.0, -3.0]])},
        {"values": np.array([[1.0, np.nan], [np.inf, 0.0], [2.0, -1e31]])},
        {"values": np.ones((3, 2), dtype=np.int64)},
        {"values": np.ones((3, 2), dtype=np.float16)},
        {"values": np.ones((3, 0))},
        {"norms": np.array([1.0, -1.0, np.nan])},
        {"size": None},
        {"size": 0},
        {"examples": None},
    ],
)
def test_sketches_as_arrays_have_the_effect_of_a_list(changes):
    stores = ReportStore(), ReportStore()
    refused = []
    for store, reports in zip(stores, sketched(**changes), strict=True):
        store.record(table((1, 2, 3), 0, update=None, norm=None, loss=None))
        refused.append(store.record(reports))
    assert refused[0] == refused[1]
    assert contents(stores[0]) == contents(stores[1])


def test_sketches_of_another_form_are_refused_as_a_list_is():
    stores = ReportStore(), ReportStore()
    rounds = [sketched(), sketched((1, 2), 1, size=5), sketched((1, 2, 3), 2, size=5), sketched()]
    for tables in rounds:
        one, two = (store.record(t) for store, t in zip(stores, tables, strict=True))
        assert one == two
        assert contents(stores[0]) == contents(stores[1])
    assert stores[0].generation == 2  # from 9 to 5, and back


def test_sketches_stay_arrays_until_a_client_reports_again():
    store = ReportStore()
    reports = sketched()[0]
    assert reports.is_valid
    store.record(reports)
    assert store.vectors([1, 2, 3]) is reports.sketches.values
    assert store.current_table((1, 2, 3)) is not None
    assert store.oldest_round((1, 2, 3)) == 0
    assert store[2].sketch.norm == 1.5
    assert store.current_table((1, 2, 3)) is not None
    store.record([ClientReport(2, 0, examples=7, loss=0.5)])
    assert store.current_table((1, 2, 3)) is None
    assert store[2].sketch is None
    assert store[3].sketch.norm == 2.0
    store.record(sketched()[0])
    np.testing.assert_array_equal(store.vectors([1, 2, 3]), reports.sketches.values)


def test_sketches_must_have_a_norm_each():
    with pytest.raises(ValueError, match=r"got arrays of shape \(2, 3\) and \(3,\)"):
        Sketches(np.ones((2, 3)), np.ones(3))


@pytest.mark.parametrize("quality", ["loss", "norm", "examples", "communication"])
@pytest.mark.parametrize("gamma", [0.0, 0.4])
def test_schedulers_choose_by_columns_as_by_reports(quality, gamma):
    clients = tuple(range(12))
    cohorts = []
    for reports in sketched(clients):
        scheduler = ADCS(quality=quality, gamma=gamma, sketch=Sketcher(size=4))
        scheduler.observe(0, reports, "probe")
        cohorts.append(scheduler.select(0, clients, 5))
    assert cohorts[0] == cohorts[1]


def test_a_list_of_many_reports_is_a_table(monkeypatch):
    reports = list(sketched(tuple(range(100)), loss=np.linspace(1.0, 2.0, 100), examples=None)[0])
    assert tabulate(reports[:10]) is None
    found = tabulate(reports)
    assert found.is_valid
    assert found.clients == tuple(range(100))
    stores = ReportStore(), ReportStore()
    stores[0].record(reports)
    monkeypatch.setattr(store_module, "tabulate", lambda reports: None)
    stores[1].record(reports)
    assert stores[0].current_table(tuple(range(100))) is not None
    assert stores[1].current_table(tuple(range(100))) is None
    assert pack(stores[0].state()) == pack(stores[1].state())


@pytest.mark.parametrize(
    "change",
    [
        {"server_round": 1},
        {"loss": None},
        {"loss": 1},
        {"examples": 3},
        {"sketch": None},
        {"sketch": Sketch(np.ones(5, dtype=np.float32), 1.0, 9)},
        {"sketch": Sketch(np.ones(4), 1.0, 9)},
        {"sketch": Sketch(np.ones(4, dtype=np.float32), 1.0, 8)},
        {"sketch": Sketch(np.ones(4, dtype=np.float32), 1.0, None)},
        {"sketch": Sketch(np.ones(4, dtype=np.float32), 1, 9)},
        {"update": [1.0]},
        {"label_counts": [1.0]},
    ],
    ids=str,
)
def test_reports_that_differ_are_no_table(change):
    reports = list(sketched(tuple(range(100)), loss=np.ones(100), examples=None)[0])
    reports[50] = replace(reports[50], **change)
    assert tabulate(reports) is None
    assert tabulate([*reports[:50], {"loss": 1.0}, *reports[51:]]) is None


@pytest.mark.parametrize("size", [1, 3, 4, 6])
def test_a_table_of_any_size_leaves_the_other_clients_reports(size):
    stores = ReportStore(), ReportStore()
    for server_round, clients in enumerate([(1, 2, 3, 4, 5, 6), tuple(range(4, 4 + size)), (1, 9)]):
        for store, kind in zip(stores, (lambda t: t, list), strict=True):
            store.record(kind(sketched(clients, server_round, examples=None)[0]))
        assert contents(stores[0]) == contents(stores[1])
        assert list(stores[0]) == list(stores[1])
        assert stores[0].has("examples") == stores[1].has("examples")
