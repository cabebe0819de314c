"""Validation of reports, and the declaration of signals."""

from __future__ import annotations

import re
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adcs.reports.report import (
    FACTS,
    LEARNING_SIGNALS,
    NUMBERS,
    REQUESTABLE,
    SIGNALS,
    ClientReport,
    flatten,
    validate_report,
)
from adcs.reports.sketch import Sketch, Sketcher


class TestSignals:
    def test_every_field_is_declared(self):
        assert list(SIGNALS) == [entry.name for entry in fields(ClientReport)[2:]]
        assert {*LEARNING_SIGNALS} >= {"loss", "norm", "update", "sketch"}
        assert {*FACTS} >= {"examples", "compute_seconds", "communication_seconds"}
        assert {"loss", "norm", "update"} <= REQUESTABLE
        assert not {*LEARNING_SIGNALS} & {*FACTS}

    def test_size_on_the_wire(self):
        sketcher = Sketcher(size=64)
        assert SIGNALS["loss"].wire_bytes(1000, sketcher) == 4
        assert SIGNALS["update"].wire_bytes(1000) == 1000
        assert SIGNALS["update"].wire_bytes(1000, sketcher) == sketcher.nbytes


class TestValidation:
    @pytest.mark.parametrize(
        ("values", "named"),
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
            ({"loss": np.complex128(3 + 9j)}, r"number, got (np\.complex128)?\(3\+9j\)"),
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
            ({"server_round": True}, "server_round must be a whole number .* got True"),
            ({"server_round": 2**63}, "server_round must be a whole number .* got 922337203"),
            ({"server_round": 1.0}, "server_round must be a whole number"),
            ({"server_round": -1}, "server_round must be a whole number"),
            ({"loss": "1.5"}, "number"),
            ({"examples": b"10"}, "number"),
        ],
    )
    def test_reason_names_the_value(self, values, named):
        reason = validate_report(ClientReport(1, **{"server_round": 0, **values}))
        assert reason is not None
        assert "\n" not in reason
        assert re.search(named, reason), reason

    @pytest.mark.parametrize(
        ("values", "named"),
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
    def test_updates_and_sketches_that_are_refused(self, values, named):
        assert named in validate_report(ClientReport(3, 0, **values))

    @given(st.floats(-1e29, 1e29))
    def test_losses_of_usual_size_are_valid(self, loss):
        assert validate_report(ClientReport(1, 0, loss=loss)) is None

    @pytest.mark.parametrize("name", NUMBERS)
    def test_only_signed_numbers_may_be_negative(self, name):
        valid = validate_report(ClientReport(1, 0, **{name: -1.0})) is None
        assert valid == SIGNALS[name].signed

    @pytest.mark.parametrize("sign", [1.0, -1.0])
    @pytest.mark.parametrize("dtype", [np.float64, np.float32])
    def test_the_largest_entry_counts_whatever_its_sign(self, sign, dtype):
        def reason(*numbers):
            update = sign * np.array(numbers, dtype=dtype)
            return validate_report(ClientReport(1, 0, update=update))

        assert reason(1.0, 0.0) is None
        assert reason(1.0, 2.0) is None
        assert "must be finite" in reason(np.inf, 0.5)
        assert "must be at most 1e+30" in reason(2e30, 0.5)
        assert reason(0.9e30, 0.5) is None


@pytest.mark.parametrize("update", [[1, 2, 3, 4], np.array([[1, 2], [3, 4]]), (True, 2, 3, 4)])
def test_whole_numbers_become_floats(update):
    vector = flatten(update)
    assert vector.dtype == np.float64
    assert vector.tolist() == [1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize(
    ("signals", "reason"),
    [
        ({"held_out_accuracy": 85.3}, "held_out_accuracy must be at most 1, got 85.3"),
        ({"held_out_accuracy": 2}, "held_out_accuracy must be at most 1, got 2"),
        ({"availability": -0.1}, "availability must not be negative, got -0.1"),
        ({"rms_loss": -1.0}, "rms_loss must not be negative, got -1"),
        ({"label_counts": 3}, "label_counts must be a list of numbers, got 3"),
        ({"label_counts": "abc"}, "label_counts must be a list of numbers, got 'abc'"),
        ({"label_counts": []}, "label_counts must have 1 to 100000 numbers in one row, got (0,)"),
        (
            {"label_counts": [[1, 2]]},
            "label_counts must have 1 to 100000 numbers in one row, got (1, 2)",
        ),
        (
            {"output_bias_update": [1.0, float("inf")]},
            "output_bias_update must be finite and at most 1e+30, got inf",
        ),
        (
            {"label_counts": [1.0, float("nan")]},
            "label_counts must be finite and at most 1e+30, got nan",
        ),
    ],
)
def test_short_vectors_and_bounded_numbers(signals, reason):
    assert validate_report(ClientReport(1, 0, **signals)) == reason


def test_noised_counts_may_be_negative():
    assert validate_report(ClientReport(1, 0, label_counts=[-3, 0, 5])) is None
    assert validate_report(ClientReport(1, 0, output_bias_update=[0.0, 0.0])) is None


def test_costs_follow_from_the_declaration():
    assert SIGNALS["label_counts"].wire_bytes(4000, classes=62) == 248
    assert SIGNALS["output_bias_update"].wire_bytes(4000, classes=62) == 248
    assert SIGNALS["rms_loss"].wire_bytes(4000) == SIGNALS["availability"].wire_bytes(4000) == 4
    works = {
        name: SIGNALS[name].work for name in ("rms_loss", "label_counts", "output_bias_update")
    }
    assert list(works.values()) == ["evaluation", "none", "update"]
