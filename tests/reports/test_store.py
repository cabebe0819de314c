"""The latest usable report of each client."""

from __future__ import annotations

import json
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

import adcs
from adcs._serialization import pack, unpack
from adcs.reports.report import FACTS, PER_CLASS, SIGNALS, ClientReport
from adcs.reports.store import ReportStore


def test_learning_signals_are_replaced_together():
    store = ReportStore()
    store.record([ClientReport(1, 0, loss=2.0, update=[1.0, 2.0], examples=7)])
    store.record([ClientReport(1, 5, loss=1.0)])
    assert store[1].update is None
    assert (store[1].loss, store[1].examples, store[1].server_round) == (1.0, 7, 5)


def test_facts_do_not_change_the_learning_signals():
    store = ReportStore()
    store.record([ClientReport(1, 3, loss=2.0)])
    store.record([ClientReport(1, 9, examples=4)])
    assert (store[1].loss, store[1].server_round, store[1].examples) == (2.0, 3, 4)


def fact(name, scale):
    """A value of a fact, by its declaration."""
    if SIGNALS[name].kind == "per_class":
        return (scale, 3.0)
    return 0.3 * scale if SIGNALS[name].maximum == 1.0 else 10.0 * scale


@pytest.mark.parametrize("missing", FACTS)
def test_each_fact_is_kept_until_a_newer_one_arrives(missing):
    facts, newer = ({name: fact(name, scale) for name in FACTS} for scale in (1.0, 2.0))
    del newer[missing]
    store = ReportStore()
    store.record([ClientReport("a", 0, loss=2.0, **facts)])
    store.record([ClientReport("a", 1, loss=1.0, **newer)])
    report = store["a"]
    assert (report.server_round, report.loss) == (1, 1.0)
    assert {name: getattr(report, name) for name in FACTS} == {**facts, **newer}


def test_the_size_of_updates_is_that_of_the_majority_not_of_the_first():
    store = ReportStore()
    reports = [ClientReport(0, 0, update=np.ones(2))]
    reports += [ClientReport(c, 0, update=np.ones(5)) for c in (1, 2)]
    refused = store.record(reports)
    assert [client for client, _ in refused] == [0]


def test_a_liar_that_reports_first_does_not_set_the_size():
    store = ReportStore()
    store.record([ClientReport("liar", 0, loss=9.0, update=np.ones(3), examples=4)])
    refused = [store.record([ClientReport(c, 0, update=np.ones(5))]) for c in range(20)]
    assert sum(map(len, refused)) == 1  # the first form keeps a tie
    assert (store.width, store.generation) == (5, 1)
    assert (store["liar"].update, store["liar"].loss, store["liar"].examples) == (None, None, 4)
    assert [store[c].vector.size for c in range(1, 20)] == [5] * 19
    twin = ReportStore()
    twin.restore(unpack(pack(store.state())))
    for each in (store, twin):
        assert each.record([ClientReport("liar", 1, update=np.ones(3))])
        assert not each.record([ClientReport(0, 1, update=np.ones(5))])


def test_the_second_report_of_a_batch_is_refused():
    store = ReportStore()
    refused = store.record([ClientReport(1, 0, loss=1.0), ClientReport(1, 0, loss=9.0)])
    assert store[1].loss == 1.0
    assert "second" in refused[0][1]


def test_numbers_are_kept_in_pythons_own_types():
    store = ReportStore()
    odd = [Decimal("1.5"), Fraction(3, 2), np.float32(1.5), np.array(1.5)]
    reports = [
        ClientReport(np.int64(c), 0, loss=loss, examples=np.int64(c)) for c, loss in enumerate(odd)
    ]
    assert store.record(reports) == []
    for client in range(4):
        report = store[client]
        assert type(report.client) is type(report.examples) is int
        assert type(report.loss) is float
        assert (report.loss, report.examples) == (1.5, client)
    json.dumps({**store.state(), "vectors": None})


def test_other_objects_are_refused():
    assert ReportStore().record([{"loss": 1.0}])[0][1] == "not a ClientReport but dict"


def test_state_round_trip():
    store = ReportStore()
    store.record([ClientReport("a", 0, loss=1.5, update=np.arange(1.0, 9.0, dtype=np.float32))])
    store.record([ClientReport("c", 0, examples=3)])
    twin = ReportStore()
    twin.restore(unpack(pack(store.state())))
    assert twin["a"].vector.dtype == np.float32
    np.testing.assert_array_equal(twin["a"].vector, store["a"].vector)
    assert twin["c"].examples == 3
    assert twin.version == store.version
    longer = [ClientReport("d", 0, update=np.ones(9))]
    assert twin.record(longer) == store.record(longer) != []


@pytest.mark.parametrize("dtypes", [("f4", "f8"), ("f2", "f4"), ("f2", "f8"), ("f4", "f4")])
def test_a_state_keeps_the_dtype_of_updates(dtypes):
    store, twin = ReportStore(), ReportStore()
    updates = [np.array([0.1, 0.7], dtype=dtype) for dtype in dtypes]
    store.record([ClientReport(c, 0, update=update) for c, update in enumerate(updates)])
    twin.restore(unpack(pack(store.state())))
    for client, update in enumerate(updates):
        for each in (store, twin):
            assert each[client].vector.dtype == update.dtype
            assert each[client].vector.tolist() == update.tolist()


def test_state_round_trip_of_sketches():
    store = ReportStore()
    sketch = adcs.Sketcher(size=8).sketch(np.arange(1.0, 12.0))
    store.record([ClientReport("b", 2, sketch=sketch)])
    twin = ReportStore()
    twin.restore(unpack(pack(store.state())))
    np.testing.assert_array_equal(twin["b"].vector, store["b"].vector)
    assert twin["b"].update_norm == store["b"].update_norm
    other = adcs.Sketcher(size=8).sketch(np.arange(1.0, 13.0))
    for one in (store, twin):
        assert "of an update of 11" in one.record([ClientReport("d", 2, sketch=other)])[0][1]
        assert "a sketch of one" in one.record([ClientReport("d", 2, update=np.ones(8))])[0][1]


def test_layers_are_one_vector():
    store = ReportStore()
    store.record([ClientReport(1, 0, update=[np.ones((2, 3)), np.zeros(2)])])
    assert store[1].vector.shape == (8,)


class TestSketching:
    """A store with a sketcher keeps sketches only."""

    def test_a_whole_update_is_kept_as_the_sketch_that_its_client_would_send(self):
        sketcher, update = adcs.Sketcher(size=8), np.arange(1.0, 30.0)
        store = ReportStore(sketcher)
        sent = sketcher.sketch(update)
        reports = [ClientReport("a", 0, update=update), ClientReport("b", 0, sketch=sent)]
        assert store.record(reports) == []
        assert store["a"].update is None
        np.testing.assert_array_equal(store["a"].vector, store["b"].vector)
        assert store["a"].update_norm == store["b"].update_norm
        assert store.width == 8

    def test_updates_of_another_size_are_refused_whole_or_sketched(self):
        sketcher = adcs.Sketcher(size=8)
        store = ReportStore(sketcher)
        store.record([ClientReport(c, 0, update=np.ones(20)) for c in range(3)])
        whole = store.record([ClientReport("x", 0, update=np.ones(21))])
        sketched = store.record([ClientReport("y", 0, sketch=sketcher.sketch(np.ones(21)))])
        assert whole == [("x", "update must have 20 numbers, got 21")]
        assert sketched == [("y", "sketch must be of an update of 20 numbers, got 21")]

    def test_an_update_without_a_sketch_is_refused(self):
        store = ReportStore(adcs.Sketcher(size=1))
        refused = store.record([ClientReport("x", 0, update=[1e-40, 0.0])])
        assert [client for client, _ in refused] == ["x"]
        assert "norm from" in refused[0][1]

    def test_a_new_size_of_most_updates_drops_the_sketches_of_the_old(self):
        store = ReportStore(adcs.Sketcher(size=8))
        store.record([ClientReport(c, 0, loss=1.0, update=np.ones(20)) for c in range(3)])
        for client in range(2):
            store.record([ClientReport(client, 1, loss=2.0, update=np.ones(21))])
        assert store.generation == 1
        assert [store[c].sketch is None for c in range(3)] == [True, False, True]


@pytest.mark.parametrize("name", PER_CLASS)
def test_a_vector_of_one_number_per_class_is_kept_as_python_floats(name):
    store, twin = ReportStore(), ReportStore()
    row = np.array([1.5, -2.0, 0.0], dtype=np.float32)
    assert store.record([ClientReport("a", 3, **{name: row}), ClientReport("b", 3, loss=1.0)]) == []
    row[:] = 9.0
    twin.restore(unpack(pack(store.state())))
    for each in (store, twin):
        assert getattr(each["a"], name) == (1.5, -2.0, 0.0)
        assert {type(number) for number in getattr(each["a"], name)} == {float}
        assert getattr(each["b"], name) is None


def test_a_state_without_later_signals_is_restored():
    store, twin = ReportStore(), ReportStore()
    store.record([ClientReport("a", 0, loss=1.5, examples=3)])
    state = store.state()
    del state["per_class"]
    state["numbers"] = {name: state["numbers"][name] for name in ("loss", "norm", "examples")}
    twin.restore(state)
    assert (twin["a"].loss, twin["a"].examples, twin["a"].label_counts) == (1.5, 3, None)


def test_label_counts_are_a_fact_and_the_bias_belongs_to_a_model():
    store = ReportStore()
    store.record([ClientReport(1, 0, label_counts=[1, 2], output_bias_update=[0.5, -0.5])])
    store.record([ClientReport(1, 1, loss=1.0)])
    assert (store[1].label_counts, store[1].output_bias_update) == ((1.0, 2.0), None)


def test_last_values_and_whether_anyone_reported():
    store = ReportStore()
    store.record([ClientReport(1, 0, rms_loss=2.0), ClientReport(2, 1, loss=1.0)])
    np.testing.assert_array_equal(store.last_values("rms_loss", (2, 1, 3)), [np.nan, 2.0, np.nan])
    assert store.has("rms_loss")
    assert not store.has("label_counts")


def test_an_update_is_copied_unless_nobody_can_change_it():
    store, buffer = ReportStore(), np.array([3.0, 4.0])
    view = buffer[:]
    view.flags.writeable = False  # Its owner can still change it.
    constant = np.array([3.0, 4.0])
    constant.flags.writeable = False
    store.record([ClientReport(i, 0, update=u) for i, u in enumerate((buffer, view, constant))])
    buffer[:] = 0.0
    assert [store[i].update.tolist() for i in range(3)] == [[3.0, 4.0]] * 3
    assert store[2].update is constant
