"""Reports, the book that keeps them, and quality scores."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import adcs
from adcs._serialization import pack, unpack
from adcs.reports.quality import qualities, rescale
from adcs.reports.report import ClientReport, validate_report
from adcs.reports.sketch import Sketch
from adcs.reports.store import ReportStore
from adcs.reports.table import ReportTable


class TestRefusal:
    @pytest.mark.parametrize(
        ("fields", "named"),
        [
            ({"loss": float("nan")}, "nan"),
            ({"loss": float("inf")}, "inf"),
            ({"loss": 1e300}, r"1e\+300"),
            ({"norm": -1.0}, "-1"),
            ({"examples": -5}, "-5"),
            ({"communication_seconds": float("nan")}, "nan"),
            ({"update": [1.0, float("nan")]}, "finite"),
            ({"update": [0.0, 0.0, 0.0]}, "zeros"),
            ({"update": []}, "direction|numbers"),
            ({"update": "abc"}, "numbers"),
            ({"update": [[1.0], "x"]}, "numbers"),
            ({"update": np.array([1e35, 1.0])}, r"1e\+35"),
            ({"loss": [1.0]}, "number"),
            ({"examples": 10**400}, r"at most 1e\+30, got 1000"),
            ({"loss": 10**400}, r"at most 1e\+30, got 1000"),
            ({"loss": -(10**5000)}, r"at most 1e\+30, got a value of type int"),
            ({"loss": 10**31}, r"at most 1e\+30, got 1e\+31"),
            ({"loss": np.complex128(3 + 9j)}, r"number, got np\.complex128\(3\+9j\)"),
            ({"norm": 3 + 9j}, r"number, got \(3\+9j\)"),
            ({"compute_seconds": np.array([1.0])}, r"number, got array\(\[1\.\]\)"),
            ({"communication_seconds": np.array(1j)}, "number"),
            ({"norm": True}, "number, got True"),
            ({"examples": np.bool_(True)}, "number, got"),
            ({"loss": np.timedelta64(3, "ns")}, "number, got"),
            ({"loss": np.longdouble("1e400")}, "finite"),
            ({"update": {"a": 1.0}}, "numbers"),
            ({"update": [np.ones(2), np.array([1j])]}, "numbers"),
            ({"update": [10**400, 1.0]}, "finite"),
            ({"server_round": True}, "round must be a whole number .* got True"),
            ({"server_round": 2**63}, "round must be a whole number .* got 9223372036854775808"),
            ({"server_round": 1.0}, "round must be a whole number"),
            ({"loss": "1.5"}, "number"),
            ({"examples": b"10"}, "number"),
        ],
    )
    def test_reason_names_the_value(self, fields, named):
        reason = validate_report(ClientReport(1, **{"server_round": 0, **fields}))
        assert reason is not None
        assert "\n" not in reason
        assert re.search(named, reason), reason

    def test_negative_round(self):
        assert "server_round" in (validate_report(ClientReport(1, -1)) or "")

    @given(st.floats(-1e29, 1e29))
    def test_any_usual_loss_is_fine(self, loss):
        assert validate_report(ClientReport(1, 0, loss=loss)) is None


class TestBook:
    def test_learning_signals_are_replaced_together(self):
        book = ReportStore()
        book.record([ClientReport(1, 0, loss=2.0, update=[1.0, 2.0], examples=7)])
        book.record([ClientReport(1, 5, loss=1.0)])
        assert book[1].update is None
        assert (book[1].loss, book[1].examples, book[1].server_round) == (1.0, 7, 5)

    def test_sizes_do_not_touch_the_learning_signals(self):
        book = ReportStore()
        book.record([ClientReport(1, 3, loss=2.0)])
        book.record([ClientReport(1, 9, examples=4)])
        assert (book[1].loss, book[1].server_round, book[1].examples) == (2.0, 3, 4)

    def test_length_is_set_by_the_majority_not_the_first(self):
        book = ReportStore()
        reports = [ClientReport(0, 0, update=np.ones(2))]
        reports += [ClientReport(c, 0, update=np.ones(5)) for c in (1, 2)]
        refused = book.record(reports)
        assert [client for client, _ in refused] == [0]

    def test_a_liar_who_comes_first_does_not_set_the_length(self):
        book = ReportStore()
        book.record([ClientReport("liar", 0, loss=9.0, update=np.ones(3), examples=4)])
        refused = [book.record([ClientReport(c, 0, update=np.ones(5))]) for c in range(20)]
        assert sum(map(len, refused)) == 1  # a tie is kept by whoever came first
        assert book.width == 5
        assert (book["liar"].update, book["liar"].loss, book["liar"].examples) == (None, None, 4)
        assert [book[c].vector.size for c in range(1, 20)] == [5] * 19
        twin = ReportStore()
        twin.restore(unpack(pack(book.state())))
        for each in (book, twin):
            assert each.record([ClientReport("liar", 1, update=np.ones(3))])
            assert not each.record([ClientReport(0, 1, update=np.ones(5))])

    def test_second_report_of_a_batch_is_refused(self):
        book = ReportStore()
        refused = book.record([ClientReport(1, 0, loss=1.0), ClientReport(1, 0, loss=9.0)])
        assert book[1].loss == 1.0
        assert "second" in refused[0][1]

    def test_whatever_is_a_number_is_kept_as_a_plain_one(self):
        book = ReportStore()
        odd = [Decimal("1.5"), Fraction(3, 2), np.float32(1.5), np.array(1.5)]
        reports = [
            ClientReport(np.int64(c), 0, loss=loss, examples=np.int64(c))
            for c, loss in enumerate(odd)
        ]
        assert book.record(reports) == []
        for client in range(4):
            report = book[client]
            assert type(report.client) is type(report.examples) is int
            assert type(report.loss) is float
            assert (report.loss, report.examples) == (1.5, client)
        json.dumps({**book.state(), "vectors": None})

    def test_not_a_report(self):
        assert ReportStore().record([{"loss": 1.0}])[0][1] == "not a ClientReport but dict"

    def test_state_round_trip(self):
        book = ReportStore()
        book.record([ClientReport("a", 0, loss=1.5, update=np.arange(1.0, 9.0, dtype=np.float32))])
        book.record([ClientReport("c", 0, examples=3)])
        twin = ReportStore()
        twin.restore(unpack(pack(book.state())))
        assert twin["a"].vector.dtype == np.float32
        np.testing.assert_array_equal(twin["a"].vector, book["a"].vector)
        assert twin["c"].examples == 3
        assert twin.version == book.version
        stranger = [ClientReport("d", 0, update=np.ones(9))]
        assert twin.record(stranger) == book.record(stranger) != []

    def test_state_round_trip_of_sketches(self):
        book = ReportStore()
        sketch = adcs.Sketcher(size=8).sketch(np.arange(1.0, 12.0))
        book.record([ClientReport("b", 2, sketch=sketch)])
        twin = ReportStore()
        twin.restore(unpack(pack(book.state())))
        np.testing.assert_array_equal(twin["b"].vector, book["b"].vector)
        assert twin["b"].update_norm == book["b"].update_norm
        other = adcs.Sketcher(size=8).sketch(np.arange(1.0, 13.0))
        for one in (book, twin):
            assert "of an update of 11" in one.record([ClientReport("d", 2, sketch=other)])[0][1]
            assert "a sketch of one" in one.record([ClientReport("d", 2, update=np.ones(8))])[0][1]

    def test_layers_are_one_vector(self):
        book = ReportStore()
        book.record([ClientReport(1, 0, update=[np.ones((2, 3)), np.zeros(2)])])
        assert book[1].vector.shape == (8,)


def table(clients=(1, 2, 3), server_round=0, **changes):
    """A table that leaves nothing out, but for what is changed."""
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


def contents(book):
    """All that a book says, as values that compare."""
    state = book.state()
    return {**state, "vectors": state["vectors"].tolist(), "version": None}


class TestTable:
    """A table is the list of its reports, whatever happens to it."""

    def test_reads_as_reports(self):
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
    def test_a_book_takes_it_as_it_takes_a_list(self, changes, before):
        books, refused = (ReportStore(), ReportStore()), []
        for book, kind in zip(books, (lambda t: t, list), strict=True):
            book.record([ClientReport(2, 0, examples=99, compute_seconds=7.0)])
            if before is not None:
                book.record(kind(table(before, update=np.ones((3, 4), dtype=np.float32))))
            refused.append(book.record(kind(table(**{"server_round": 1, **changes}))))
        assert refused[0] == refused[1]
        for name in ("loss", "update_norm"):
            told, numbers = zip(
                *(book.fresh_values(name, 1, (1, 2, 3)) for book in books), strict=True
            )
            assert told[0] == told[1]
            np.testing.assert_array_equal(*numbers)
        assert books[0].width == books[1].width
        assert books[0].version == books[1].version
        assert contents(books[0]) == contents(books[1])

    def test_columns_of_another_length(self):
        with pytest.raises(ValueError, match="norm must hold one entry for each of 3"):
            table(norm=np.ones(2))

    def test_what_the_book_tells_is_nobody_elses(self):
        book, buffer = ReportStore(), np.ones((3, 4))
        book.record(table(update=buffer, norm=None))
        buffer[:] = 7.0
        np.testing.assert_array_equal(book[2].vector, np.ones(4))
        book.record(table(update=None, loss=np.array([3.0, 4.0, 5.0])))
        book.fresh_values("loss", 0, (1, 2, 3))[1][:] = 0.0
        assert book[1].loss == 3.0

    def test_a_state_holds_the_newest_table(self):
        book, twin = ReportStore(), ReportStore()
        book.record(table((1, 2, 3), 4, update=None))
        twin.restore(unpack(pack(book.state())))
        assert contents(twin) == contents(book)
        twin.record(table((1, 2, 3), 9, update=None))
        twin.restore(unpack(pack(book.state())))
        assert twin[2].server_round == 4


def test_unpack_garbage():
    with pytest.raises(ValueError, match="not a packed"):
        unpack(b"garbage")


class TestQuality:
    def test_mix(self):
        reports = [
            ClientReport(c, 0, loss=loss, communication_seconds=s)
            for c, (loss, s) in enumerate([(1.0, 5.0), (2.0, 3.0), (3.0, 1.0)])
        ]
        learn = qualities(reports, scale="standard")
        comm = qualities(reports, gamma=1.0)
        mixed = qualities(reports, gamma=0.25)
        np.testing.assert_allclose(mixed, 0.75 * learn + 0.25 * comm)

    def test_missing_value_is_named(self):
        with pytest.raises(ValueError, match="'x' does not tell its loss"):
            qualities([ClientReport("x", 0)])

    @given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=20))
    def test_rank_is_bounded_and_monotone(self, values):
        v = np.array(values)
        ranks = rescale(v, "rank")
        assert ((ranks >= 0) & (ranks <= 1)).all()
        assert (np.diff(ranks[np.argsort(v)]) >= 0).all()

    @given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=20))
    def test_standard_is_bounded(self, values):
        z = rescale(np.array(values), "standard")
        assert np.abs(z).max() <= np.sqrt(len(values) - 1) + 1e-9

    def test_rounding_is_no_quality(self):
        equal = np.float32(2.3025851) * (1 + np.float32(1e-7) * np.arange(3, dtype=np.float32))
        values = equal.astype(np.float64)
        assert np.ptp(rescale(values, "rank")) == 0
        assert np.ptp(rescale(values, "standard")) == 0


class TestLiars:
    """Six clients of one direction claim huge losses; the other clients tell the truth."""

    def cohort(self, scale):
        rng = np.random.default_rng(0)
        honest = rng.standard_normal((14, 60))
        liars = rng.standard_normal(60) + 0.05 * rng.standard_normal((6, 60))
        updates = np.vstack([honest, liars])
        losses = [*rng.uniform(1.0, 2.5, 14), *[1e6] * 6]
        scheduler = adcs.ADCS(theta=0.8, scale=scale)
        reports = [
            ClientReport(c, 0, loss=loss, update=u)
            for c, (loss, u) in enumerate(zip(losses, updates, strict=True))
        ]
        scheduler.observe(0, reports, "probe")
        return scheduler.select(0, range(20), 6).clients

    def test_raw_losses_buy_every_place(self):
        assert sum(c >= 14 for c in self.cohort("raw")) == 6

    def test_ranks_do_not(self):
        assert sum(c >= 14 for c in self.cohort("rank")) <= 2

    def test_on_a_bounded_scale_one_liar_is_no_more_than_the_worst_off(self):
        honest = np.array([1.0, 1.2, 1.4, 2.5])
        lying = np.array([1e6, 1.2, 1.4, 2.5])
        assert rescale(lying, "rank").max() == rescale(honest, "rank").max()
        assert rescale(lying, "standard").max() <= np.sqrt(3) + 1e-12


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"update": np.array([1 + 5j, 2])}, "complex"),
        ({"update": np.array(["1.0", "3.0"])}, "<U3"),
        ({"sketch": Sketch(np.ones(4, np.float32), float("nan"))}, "norm must be finite"),
        ({"sketch": Sketch(np.ones(4, np.float32), -1.0)}, "norm must not be negative"),
        ({"sketch": Sketch(np.zeros(4, np.float32), 1.0)}, "direction"),
        ({"sketch": Sketch(np.ones(4, np.float32), 1.0, "ten")}, "update_size"),
        ({"sketch": Sketch(np.ones(4, np.float32), 1.0, True)}, "update_size"),
        ({"sketch": Sketch(np.ones(4, np.float32), 1.0, 2**63)}, "update_size"),
        ({"sketch": Sketch(np.ones((2, 4)), 1.0, 6)}, "array of shape (2, 4)"),
        ({"sketch": Sketch(np.array(1.0), 1.0, 6)}, "array of shape ()"),
        ({"sketch": Sketch(np.ones(4, complex), 1.0, 6)}, "numbers"),
        ({"sketch": Sketch(np.ones(4, object), 1.0, 6)}, "numbers"),
        ({"sketch": Sketch(np.ones(4), 1j, 6)}, "norm must be a number"),
        ({"sketch": Sketch([1.0], 1.0)}, "must be a Sketch"),
        ({"update": np.ones(4), "sketch": "garbage"}, "must be a Sketch"),
    ],
)
def test_vectors_that_are_refused(fields, named) -> None:
    assert named in validate_report(ClientReport(3, 0, **fields))
