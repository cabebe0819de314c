from __future__ import annotations

import math
import os
import struct
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adcs.dpp.kernel import similarity, unit_rows
from adcs.reports import projection
from adcs.reports.sketch import Sketch, Sketcher

KINDS = ("count", "sparse", "gaussian")
DTYPES = ("int8", "float32")
MASK = 2**64 - 1


def update(d: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=d)


def pair(d: int, cosine: float) -> np.ndarray:
    """Two spread-out vectors of norms 2 and 3 with exactly this cosine."""
    q, _ = np.linalg.qr(np.random.default_rng(7).normal(size=(d, 2)))
    return np.stack([2 * q[:, 0], 3 * (cosine * q[:, 0] + math.sqrt(1 - cosine**2) * q[:, 1])])


# --- Accuracy -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cosine", [0.0, 0.6])
def test_inner_products_are_unbiased_with_error_one_over_root_k(
    kind: str, dtype: str, cosine: float
) -> None:
    k, draws = 64, 600
    rows = pair(2500 if kind != "gaussian" else 300, cosine)
    found = np.empty(draws)
    for seed in range(draws):
        values, norms = Sketcher(k, kind, dtype, seed).sketch_rows(rows)
        found[seed] = values[0] @ values[1] / (norms[0] * norms[1])
    expected = math.sqrt((1 + cosine**2) / k)
    assert abs(found.mean() - cosine) < 4 * expected / math.sqrt(draws)
    rms = math.sqrt(np.mean((found - cosine) ** 2))
    assert 0.85 * expected < rms < 1.15 * expected


@pytest.mark.parametrize("kind", KINDS)
def test_cosines_of_many_updates(kind: str) -> None:
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(20, 2000)) + rng.normal(size=2000)
    exact = similarity(unit_rows(rows))
    upper = np.triu_indices(20, 1)
    errors = [
        (similarity(unit_rows(Sketcher(256, kind, "int8", s).sketch_rows(rows)[0])) - exact)[upper]
        for s in range(4)
    ]
    assert np.sqrt(np.mean(np.square(errors))) < 1.15 / math.sqrt(256)


@pytest.mark.parametrize("kind", KINDS)
def test_int8_costs_nothing(kind: str) -> None:
    """Its own error is a twentieth of the sketch's, on one and the same map."""
    rows = np.random.default_rng(5).normal(size=(30, 2000))
    small, large = (
        unit_rows(Sketcher(256, kind, dtype).sketch_rows(rows)[0]) for dtype in ("int8", "float32")
    )
    added = (similarity(small) - similarity(large))[np.triu_indices(30, 1)]
    assert 0 < np.sqrt(np.mean(added**2)) < 0.05 / math.sqrt(256)


@pytest.mark.parametrize("kind", KINDS)
def test_maps_of_other_seeds_and_kinds_differ(kind: str) -> None:
    x = update(1000)
    base = Sketcher(64, kind, "float32", 1).sketch(x).values
    others = [Sketcher(64, kind, "float32", s).sketch(x).values for s in (0, 2, 2**63, 2**64 - 1)]
    others += [Sketcher(64, k, "float32", 1).sketch(x).values for k in KINDS if k != kind]
    for other in others:
        cosine = base @ other / np.linalg.norm(base) / np.linalg.norm(other)
        assert abs(cosine) < 0.5


@pytest.mark.parametrize("kind", KINDS)
def test_the_map_is_linear(kind: str) -> None:
    x, y = update(500, 1), update(500, 2)
    sketcher = Sketcher(32, kind, "float32")
    both = sketcher.sketch(2 * x - 3 * y).values
    parts = 2 * sketcher.sketch(x).values - 3 * sketcher.sketch(y).values
    np.testing.assert_allclose(both, parts, rtol=0, atol=1e-4)


# --- The same everywhere ------------------------------------------------------------------------


def splitmix64(seed: int, count: int) -> list[int]:
    """The published algorithm, one number at a time."""
    out, state = [], seed
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) & MASK
        z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        out.append(z ^ (z >> 31))
    return out


def test_hash_is_splitmix64() -> None:
    assert splitmix64(0, 1) == [0xE220A8397B1DCDAF]
    key = 0xFEDCBA9876543210
    assert projection._hash(key, 0, 50).tolist() == splitmix64(key, 50)
    assert projection._hash(key, 17, 20).tolist() == splitmix64(key, 50)[17:37]


def test_count_by_hand() -> None:
    x, k, seed = update(700), 32, 9
    key = splitmix64((splitmix64(seed, 1)[0] + 0) & MASK, 1)[0]
    expected = [0.0] * k
    for value, h in zip(x, splitmix64(key, x.size), strict=True):
        expected[(h >> 32) * k >> 32] += -value if h & 1 else value
    values = Sketcher(k, "count", "float32", seed).sketch(x).values
    assert values.tolist() == np.float32(expected).tolist()


def test_sparse_by_hand() -> None:
    x, k, seed = update(702), 32, 9
    run = 26
    key = splitmix64((splitmix64(seed, 1)[0] + 1) & MASK, 1)[0]
    hashes = iter(splitmix64(key, 28 * k))
    expected = np.zeros(k)
    for start in range(0, x.size, run):
        for row in range(k):
            h = next(hashes)
            place = start + ((h >> 32) * run >> 32)
            if place < x.size:
                expected[row] += -x[place] if h & 1 else x[place]
    values = Sketcher(k, "sparse", "float32", seed).sketch(x).values
    assert values.tolist() == np.float32(expected * math.sqrt(run / k)).tolist()


def test_gaussian_entries_are_standard_normal() -> None:
    rows = np.eye(200)
    entries = Sketcher(256, "gaussian", "float32").sketch_rows(rows)[0] * 16
    assert abs(entries.mean()) < 0.02
    assert abs(entries.std() - 1) < 0.02
    assert abs((np.abs(entries) < 1).mean() - 0.6827) < 0.01
    assert np.abs(entries.T @ entries / 200 - np.eye(256)).max() < 0.5


SCRIPT = """
import numpy as np
from adcs.reports.sketch import Sketcher
np.random.seed(123)
x = np.arange(1, 5001) ** 0.5 * np.where(np.arange(5000) % 3, 1, -1)
for kind in ("count", "sparse", "gaussian"):
    print(Sketcher(32, kind, "int8", 5).sketch(x).encode().hex())
"""


def test_another_process_with_another_hash_salt() -> None:
    x = np.arange(1, 5001) ** 0.5 * np.where(np.arange(5000) % 3, 1, -1)
    here = [Sketcher(32, kind, "int8", 5).sketch(x).encode().hex() for kind in KINDS]
    for salt in ("1", "77"):
        environment = {**os.environ, "PYTHONHASHSEED": salt}
        run = subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        assert run.stdout.split() == here


@pytest.mark.parametrize("kind", KINDS)
def test_layers_of_any_shape_equal_one_vector(kind: str) -> None:
    x = update(3 * 4 * 5 + 17 + 30_000 + 1)
    whole = Sketcher(64, kind).sketch(x).encode()
    layers = [
        x[:60].reshape(3, 4, 5),
        np.empty((0, 3)),
        x[60:77].tolist(),
        np.asfortranarray(x[77:30_077].reshape(300, 100)),
        x[30_077],
    ]
    assert Sketcher(64, kind).sketch(layers).encode() == whole
    assert Sketcher(64, kind).sketch(tuple(np.split(x, [1, 2, 16_384]))).encode() == whole
    assert Sketcher(64, kind).sketch(x.reshape(-1, 2)).encode() == whole
    assert Sketcher(64, kind).sketch(np.repeat(x, 2)[::2]).encode() == whole


@pytest.mark.parametrize("kind", ["count", "sparse"])
@pytest.mark.parametrize("block", [1, 777, 2**20])
def test_blocks_leave_no_trace(kind: str, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x = update(20_000)
    before = Sketcher(64, kind, "float32").sketch(x).encode()
    monkeypatch.setattr(projection, "_BLOCK", block)
    assert Sketcher(64, kind, "float32").sketch(x).encode() == before


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("d", [1, 300, 20_011])
def test_rows_equal_single_sketches(kind: str, dtype: str, d: int) -> None:
    rows = np.random.default_rng(1).normal(size=(4, d)).astype(np.float32)
    sketcher = Sketcher(24, kind, dtype, 3)
    values, norms = sketcher.sketch_rows(rows)
    assert values.dtype == np.float32
    for i, row in enumerate(rows):
        single = sketcher.sketch(row)
        assert single.values.tobytes() == values[i].tobytes()
        assert single.norm == norms[i]


@pytest.mark.parametrize("kind", KINDS)
def test_float_formats_of_one_update_agree(kind: str) -> None:
    half = update(3000).astype(np.float16)
    sketcher = Sketcher(64, kind)
    assert sketcher.sketch(half).encode() == sketcher.sketch(half.astype(np.float32)).encode()
    assert sketcher.sketch(half).encode() == sketcher.sketch(half.astype(np.float64)).encode()
    x = update(3000)
    wide = Sketcher(64, kind, "float32").sketch(x)
    narrow = Sketcher(64, kind, "float32").sketch(x.astype(np.float32))
    np.testing.assert_allclose(narrow.values, wide.values, rtol=0, atol=1e-5)
    assert narrow.norm == pytest.approx(wide.norm, rel=1e-6)


@pytest.mark.parametrize("kind", ["count", "sparse"])
def test_ten_million_coordinates_in_bounded_memory(kind: str) -> None:
    x = np.ones((2, 5_000_000), dtype=np.float32)
    layers = [x[0].reshape(1000, 5000).T, x[1]]
    tracemalloc.start()
    try:
        sketch = Sketcher(1024, kind).sketch(layers)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 5e6
    assert sketch.update_size == 10_000_000
    assert sketch.norm == pytest.approx(math.sqrt(1e7))


# --- The wire -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 7, 256, 1000])
def test_byte_counts_and_round_trip(kind: str, size: int) -> None:
    x = np.abs(update(200)) + np.arange(200)
    for dtype, expected in (("int8", 16 + size), ("float32", 16 + 4 * size)):
        sketcher = Sketcher(size, kind, dtype, 4)
        sketch = sketcher.sketch(x)
        wire = sketch.encode()
        assert len(wire) == sketcher.nbytes == expected
        back = sketcher.decode(wire)
        assert back.values.tobytes() == sketch.values.tobytes()
        assert back.values.shape == (size,)
        assert (back.norm, back.update_size, back.encode()) == (sketch.norm, 200, wire)
        assert back.norm == pytest.approx(np.linalg.norm(x), rel=1e-6)


def test_layout_is_the_documented_one() -> None:
    wire = Sketcher(4, "count", "int8").sketch([3.0, 0.0, 4.0]).encode()
    version, code, _, d, norm, scale = struct.unpack_from("<BBHIff", wire)
    assert (version, code, d, norm) == (1, 16, 3, 5.0)
    stored = np.frombuffer(wire, np.int8, offset=16)
    assert stored.tolist() == [-95, 127, 0, 0]
    assert scale == np.float32(4 / 127)


def test_values_cannot_be_written() -> None:
    with pytest.raises(ValueError, match="read-only"):
        Sketcher(4).sketch([1.0]).values[0] = 2


def test_a_sketch_without_bytes_says_so() -> None:
    with pytest.raises(ValueError, match="only if a Sketcher made it"):
        Sketch(values=np.ones(4, dtype=np.float32), norm=2.0).encode()


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (Sketcher(257), "must be 272 bytes long, got 273"),
        (Sketcher(64, dtype="float32"), "got code 0x00"),
        (Sketcher(256, kind="sparse"), "must be of kind count in int8, got code 0x11"),
        (Sketcher(256, seed=1), "another seed"),
    ],
)
def test_a_client_with_other_settings_is_noticed(other: Sketcher, message: str) -> None:
    server = Sketcher(256)
    wire = other.sketch(update(100)).encode()
    if other.dtype == "float32":
        server = Sketcher(4 * 64)
    with pytest.raises(ValueError, match=message):
        server.decode(wire)


@pytest.mark.parametrize(
    ("dtype", "offset", "layout", "value", "message"),
    [
        ("int8", 0, "<B", 2, "layout version 1, got 2"),
        ("int8", 4, "<I", 0, "1 to 4294967295 coordinates, got 0"),
        ("int8", 8, "<f", math.nan, "norm from 1e-30 to 1e\\+30 .* got nan"),
        ("int8", 8, "<f", math.inf, "norm from 1e-30 to 1e\\+30 .* got inf"),
        ("int8", 8, "<f", -1.0, "norm from 1e-30 to 1e\\+30 .* got -1"),
        ("int8", 12, "<f", math.nan, "largest value .* got nan"),
        ("int8", 12, "<f", math.inf, "largest value .* got inf"),
        ("int8", 12, "<f", -1.0, "largest value .* got -127"),
        ("int8", 16, "<8b", [0] * 8, "largest magnitude 127, got 0"),
        ("int8", 16, "<8b", [-128] * 8, "largest magnitude 127, got 128"),
        ("float32", 12, "<f", 2.0, "scale 1, got 2"),
        ("float32", 16, "<f", math.nan, "largest value .* got nan"),
        ("float32", 16, "<f", -math.inf, "largest value .* got inf"),
        ("float32", 16, "<8f", [0.0] * 8, "largest value .* got 0"),
    ],
)
def test_forged_fields_are_refused(
    dtype: str, offset: int, layout: str, value: float | list[float], message: str
) -> None:
    sketcher = Sketcher(8, dtype=dtype)
    wire = bytearray(sketcher.sketch(update(100)).encode())
    struct.pack_into(layout, wire, offset, *(value if isinstance(value, list) else [value]))
    with pytest.raises(ValueError, match=message):
        sketcher.decode(wire)


def decode_or_refuse(sketcher: Sketcher, data: bytes) -> None:
    try:
        sketch = sketcher.decode(data)
    except ValueError:
        return
    assert sketch.encode() == data
    assert sketch.values.shape == (sketcher.size,)
    assert np.isfinite(sketch.values).all()
    assert sketch.values.any()
    assert 1e-30 <= sketch.norm <= 1e30


@given(data=st.binary(max_size=40), dtype=st.sampled_from(DTYPES))
def test_garbage_is_refused(data: bytes, dtype: str) -> None:
    decode_or_refuse(Sketcher(4, dtype=dtype), data)


@settings(max_examples=300)
@given(data=st.data(), dtype=st.sampled_from(DTYPES))
def test_garbage_behind_a_good_header_is_refused(data: st.DataObject, dtype: str) -> None:
    sketcher = Sketcher(4, dtype=dtype)
    good = sketcher.sketch([1.0, -2.0, 3.0]).encode()
    keep = data.draw(st.sampled_from([0, 4, 8, 12, 16]))
    size = len(good) - keep
    decode_or_refuse(sketcher, good[:keep] + data.draw(st.binary(min_size=size, max_size=size)))


@pytest.mark.parametrize("data", [None, "text", 3, [1, 2]])
def test_decode_takes_bytes_only(data: object) -> None:
    with pytest.raises(ValueError, match="sketch must be bytes, got "):
        Sketcher().decode(data)  # type: ignore[arg-type]


# --- What cannot be sketched --------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ([1.0, math.nan], "update must be finite: coordinate 1 is nan"),
        ([np.ones(3), np.array([1.0, -math.inf])], "update must be finite: coordinate 4 is -inf"),
        (np.r_[np.ones(40_000), math.nan], "update must be finite: coordinate 40000 is nan"),
        (np.zeros(5), "norm from 1e-30 to 1e\\+30 .* got 0"),
        ([1e300, 1e300], "norm from 1e-30 to 1e\\+30 .* got inf"),
        ([1e-31], "norm from 1e-30 to 1e\\+30 .* got 1e-31"),
        ([], "update must have 1 to 4294967295 coordinates, got 0"),
        ([1j], "update must be numbers: layer 0 is an array of complex128"),
        (["a"], "update must be numbers: layer 0 is an array of <U1"),
        ([np.ones(2), [[1.0], [1.0, 2.0]]], "update must be numbers: layer 1 cannot be an array"),
        (3.0, "update must be an array or a list of layers, got 3.0"),
    ],
)
def test_bad_updates_are_refused(kind: str, bad: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Sketcher(16, kind).sketch(bad)  # type: ignore[arg-type]


def test_bad_rows_are_named() -> None:
    with pytest.raises(ValueError, match="row 1 must have a norm"):
        Sketcher().sketch_rows([[1.0, 2.0], [0.0, 0.0]])
    with pytest.raises(ValueError, match="row 1 holds nan"):
        Sketcher().sketch_rows([[1.0, 2.0], [0.0, math.nan]])


def test_an_update_that_cancels_itself_is_refused() -> None:
    messages = set()
    for seed in range(8):
        try:
            Sketcher(1, seed=seed).sketch([1.0, 1.0])
        except ValueError as error:
            messages.add(str(error))
    assert len(messages) == 1
    assert "got 0; if the update cancels itself, use a larger size" in messages.pop()


@pytest.mark.parametrize("norm", [1e30, 1e-30])
@pytest.mark.parametrize("dtype", DTYPES)
def test_extreme_norms_survive(norm: float, dtype: str) -> None:
    sketcher = Sketcher(64, dtype=dtype)
    x = update(100) / np.linalg.norm(update(100))
    small = sketcher.sketch(x).values
    large = sketcher.sketch(x * norm * (0.99 if norm > 1 else 1.01)).values.astype(np.float64)
    cosine = small @ large / np.linalg.norm(small) / np.linalg.norm(large)
    assert cosine == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"size": 0}, "size must be a whole number from 1 to 2147483647, got 0"),
        ({"size": 2.0}, "size must be a whole number from 1 to 2147483647, got 2.0"),
        ({"size": True}, "size must be a whole number from 1 to 2147483647, got True"),
        ({"kind": "fft"}, "kind must be one of count, sparse, gaussian, got 'fft'"),
        ({"dtype": "int4"}, r"dtype must be one of float32, int8, got 'int4'; did you mean int8\?"),
        ({"seed": -1}, "seed must be a whole number from 0 to 18446744073709551615, got -1"),
        ({"seed": "0"}, "seed must be a whole number from 0 to 18446744073709551615, got '0'"),
    ],
)
def test_bad_settings_are_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        Sketcher(**given)  # type: ignore[arg-type]
