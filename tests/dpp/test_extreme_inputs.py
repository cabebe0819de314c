"""Any finite number is taken as it is, without a warning; what is none is refused in a sentence."""

from __future__ import annotations

import sys
import warnings
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import adcs
from adcs.dpp.constraints import Constraints
from adcs.dpp.exact import exact_map
from adcs.dpp.explain import explain
from adcs.dpp.facility_location import facility_location, pairwise_distances
from adcs.dpp.greedy import greedy_map, greedy_map_features
from adcs.dpp.kernel import (
    check_theta,
    log_kernel,
    objective,
    row_norms,
    similarity,
    split_kernel,
    unit_rows,
)
from adcs.dpp.sampling import log_probability, log_probability_mdpp, sample_mdpp
from adcs.reports.quality import check_gamma

MOST, LEAST = sys.float_info.max, 5e-324
EDGES = [s * x for s in (1, -1) for x in (MOST, 1.5e308, 1e308, 1e-308, sys.float_info.min, LEAST)]
FINITE = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=True),
    st.sampled_from([*EDGES, 0.0, 1.0, -1.0]),
)
THETAS = st.one_of(st.floats(0.0, 1.0), st.sampled_from([0.0, 0.8, 1.0 - 2**-53, 1.0]))
EXAMPLES = settings(deadline=None, max_examples=150)


@pytest.fixture(autouse=True)
def no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@st.composite
def instances(draw):
    n, d = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    updates = draw(arrays(np.float64, (n, d), elements=FINITE))
    quality = draw(st.one_of(st.none(), arrays(np.float64, n, elements=FINITE)))
    return updates, quality, draw(THETAS), draw(st.integers(1, n))


def check_distinct(indices, n, m):
    chosen = np.asarray(indices).tolist()
    assert len(chosen) == m
    assert len(set(chosen) & set(range(n))) == m


def in_a_sentence(call, *args, **kwargs):
    """What a call returns; None if it raised a ValueError, whose message is one line."""
    message = ""
    try:
        return call(*args, **kwargs)
    except ValueError as error:
        message = str(error)
    assert message
    assert "\n" not in message
    return None


def test_large_updates_are_chosen_once() -> None:
    updates = [[1.5e308, 1.5e308], [1.5e308, -1.5e308], [0, 1.0]]
    assert adcs.select(updates, 3).tolist() == [0, 1, 2]


@EXAMPLES
@given(instances())
def test_any_finite_updates_are_chosen_from(instance):
    updates, quality, theta, m = instance
    assume(updates.any(axis=1).all())
    chosen = adcs.select(updates, m, quality=quality, theta=theta)
    check_distinct(chosen, len(updates), m)
    # What counts is direction: a power of two that rounds nothing changes nothing.
    top = np.frexp(np.abs(updates).max(axis=1))[1]
    if (np.abs(updates)[updates != 0].min(initial=1.0) > 1e-150) and (top < 500).all():
        again = adcs.select(np.ldexp(updates, 1000 - top[:, None]), m, quality=quality, theta=theta)
        assert chosen.tolist() == again.tolist()


@EXAMPLES
@given(instances())
def test_any_finite_updates_have_directions(instance):
    updates, *_ = instance
    assume(updates.any(axis=1).all())
    unit = unit_rows(updates)
    np.testing.assert_allclose(np.linalg.norm(unit, axis=1), 1.0, rtol=1e-14)
    c = similarity(updates)
    np.testing.assert_allclose(c, unit @ unit.T, atol=1e-14)
    assert (row_norms(updates) > 0.0).all()


@EXAMPLES
@given(instances(), st.integers(0, 2**32))
def test_any_finite_quality_goes_with_every_search(instance, seed):
    updates, quality, theta, m = instance
    assume(updates.any(axis=1).all())
    n, c = len(updates), similarity(updates)
    goodness = {"quality": quality, "theta": theta}
    for selection in (
        greedy_map(c, m, **goodness),
        greedy_map_features(np.tile(updates, (60, 1)), 2 * m, quality=None, theta=theta),
        in_a_sentence(exact_map, c, m, **goodness),
    ):
        if selection is not None:
            check_distinct(selection.indices, 60 * n, selection.indices.size)
            assert not np.isnan(selection.objective)
            assert not np.isnan(objective(c, selection.indices % n, None, theta))
    drawn = in_a_sentence(sample_mdpp, c, m, rng=np.random.default_rng(seed), **goodness)
    if drawn is not None:
        check_distinct(drawn, n, m)
    for call in (log_probability, log_probability_mdpp):
        in_a_sentence(call, c, [0], **goodness)
    in_a_sentence(log_kernel, c, quality, theta)


@EXAMPLES
@given(instances())
def test_any_finite_rows_are_represented(instance):
    updates, _, _, m = instance
    distances = in_a_sentence(pairwise_distances, updates)
    far = np.abs(updates).max() > 1e300
    assert distances is not None or far
    for d in (distances, np.abs(updates @ np.zeros((updates.shape[1], 1)) + updates[:, :1].T)):
        if d is not None:
            result = facility_location(d, m)
            check_distinct(result.indices, len(updates), m)
            assert np.isfinite(result.gains).all()
            assert np.isfinite(result.cost)


@EXAMPLES
@given(st.integers(1, 5).flatmap(lambda n: arrays(np.float64, (n, n), elements=FINITE)))
def test_any_finite_matrix_is_a_kernel_or_refused(matrix):
    n = len(matrix)
    both = np.tril(matrix) + np.tril(matrix, -1).T
    ones = np.clip(both, -1.0, 1.0)
    np.fill_diagonal(ones, 1.0)
    check_distinct(greedy_map(ones, n).indices, n, n)  # definite or not
    huge = both.copy()
    np.fill_diagonal(huge, 1.0)
    for kernel in (matrix, both, huge):
        selection = in_a_sentence(greedy_map, kernel, n)
        assert selection is None or np.abs(kernel).max() <= 1.0 + 1e-9
        in_a_sentence(split_kernel, kernel)


@EXAMPLES
@given(instances(), st.sampled_from(["count", "sparse", "gaussian"]), st.sampled_from([1, 8]))
def test_any_finite_update_is_sketched_or_refused(instance, kind, size):
    updates, *_ = instance
    for dtype in ("int8", "float32"):
        sketcher = adcs.Sketcher(size=size, kind=kind, dtype=dtype)
        for update in updates:
            sketch = in_a_sentence(sketcher.sketch, update)
            if sketch is not None:
                assert np.isfinite(sketch.values).all()
        in_a_sentence(sketcher.sketch_rows, updates)


NOT_FINITE = [
    10**400,
    -(10**400),
    10**5000,
    Decimal("1e400"),
    Decimal("sNaN"),
    np.longdouble("1e400"),
]
NO_NUMBERS = ["1", b"1", None, 1j, np.complex128(3), [1.0], {}, np.datetime64(1, "ns"), object()]


@pytest.mark.parametrize("value", [*NOT_FINITE, *NO_NUMBERS], ids=lambda v: type(v).__name__)
def test_what_is_no_finite_number_is_refused_in_a_sentence(value):
    c, rng = np.eye(3), np.random.default_rng(0)
    quality = [value, 1, 1]
    for call in (
        lambda: adcs.select(c, 2, quality=quality),
        lambda: greedy_map(c, 2, quality=quality, theta=0.5),
        lambda: exact_map(c, 2, quality=quality, theta=0.5),
        lambda: sample_mdpp(c, 2, quality=quality, theta=0.5, rng=rng),
    ):
        with pytest.raises(ValueError, match=r"^quality must be (numbers|finite).*$"):
            call()
    for rows in ([[value, 1.0], [1.0, 2.0]], np.array([[value, 1.0], [1.0, 2.0]], dtype=object)):
        if isinstance(value, list):
            continue
        with pytest.raises(ValueError, match=r"^updates must be (numbers|finite).*$"):
            adcs.select(rows, 1)
    for check, name in ((check_theta, "theta"), (check_gamma, "gamma")):
        with pytest.raises(ValueError, match=rf"^{name} must lie in \[0, 1\], got .*$"):
            check(value)


@pytest.mark.parametrize(
    "numbers",
    [
        [Fraction(1, 2), Fraction(3), 2],
        [Decimal("0.5"), 3, 2],
        [10**25, 10**26, 10**25],
        [np.array(0.5), np.float16(3.0), np.longdouble(2.0)],
        np.array([1, 3, 2], dtype=np.uint8),
    ],
    ids=["fractions", "decimals", "large ints", "scalars", "uint8"],
)
def test_what_is_a_number_is_taken_for_one(numbers):
    assert adcs.select(np.eye(3), 1, quality=numbers, theta=0.9).tolist() == [1]
    rows = np.array([[x, 1] for x in numbers], dtype=object)
    check_distinct(adcs.select(rows, 2), 3, 2)


class NoArray:
    def __array__(self, dtype=None, copy=None):
        raise RuntimeError("call detach() first")


@pytest.mark.parametrize(
    "bad", [NoArray(), [[0], [1, 2]], ["x" * 10_000]], ids=["no array", "ragged", "long text"]
)
@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda bad: explain(np.eye(3), bad), "indices"),
        (lambda bad: explain(np.eye(3), [0], constraints=Constraints(required=bad)), "required"),
        (lambda bad: objective(np.eye(3), bad), "subset"),
        (lambda bad: log_probability(np.eye(3), bad), "subset"),
        (lambda bad: sample_mdpp(np.eye(3), 1, rng=np.random.default_rng(0), given=bad), "given"),
        (lambda bad: greedy_map(bad, 1), "similarity"),
        (lambda bad: adcs.ADCS(quality=np.array(["loss", "x" * 10_000])), "quality"),
    ],
)
def test_what_is_no_array_is_named(call, name, bad):
    with pytest.raises(ValueError, match=f"^{name} must ") as caught:
        call(bad)
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize("theta", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("high", [1e308, 1.7976931348623157e308])
def test_qualities_further_apart_than_float64_are_explained(theta, high):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = explain(np.eye(3), [0, 1], quality=[high, 0.0, -high], theta=theta)
    miss = found.left_out[0]
    assert (miss.row, miss.quality) == (2, -high)
    assert theta == 0.0 or miss.reason == "quality"
