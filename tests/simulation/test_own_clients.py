"""Data of the user's own clients: from Python, folders, LEAF, Hugging Face; regression and AUC."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adcs import metrics
from adcs.experiments.config import Experiment
from adcs.simulation import MLP, Federation, load, make_partition
from adcs.simulation.datasets import (
    from_arrays,
    from_clients,
    from_folder,
    from_leaf,
    from_npz,
    from_partitions,
    natural_clients,
)

RNG = np.random.default_rng(0)


def some(n: int, features: int = 3) -> tuple[np.ndarray, np.ndarray]:
    return RNG.standard_normal((n, features)), np.arange(n) % 2


def two_clients() -> dict[Any, Any]:
    return {"ann": (some(6), some(4)), "bob": (some(5), some(2))}


# From Python


def test_clients_keep_their_examples() -> None:
    held = two_clients()
    federation = Federation.from_clients(held, batch_size=2)
    assert federation.partition.names == ("ann", "bob")
    for i, ((x, y), (x_test, _)) in enumerate(held.values()):
        found, labels = federation.all_of(i)
        np.testing.assert_allclose(found, x.astype(np.float32))
        np.testing.assert_array_equal(labels, y)
        rows = federation.dataset.x_test[federation.partition.test[i]]
        np.testing.assert_allclose(rows, x_test.astype(np.float32))


def test_whole_numbers_are_ids_in_their_order() -> None:
    made = from_clients({10: (some(4), some(2)), 9: (some(4), some(2))})
    assert made.client_names == ("9", "10")


x4, y4 = some(4)
BAD: list[tuple[Any, str]] = [
    ({"ann": ((x4, y4), (x4[:0], y4[:0]))}, "client 'ann' has no test examples"),
    ({"ann": ((x4[:0], y4[:0]), (x4, y4))}, "client 'ann' has no training examples"),
    ({"ann": ((x4, y4[:2]), (x4, y4))}, "client 'ann': x and y have shapes"),
    (
        {**two_clients(), "eve": (some(4, 5), some(2, 5))},
        r"client 'eve': examples have shape \(5,\), those of client 'ann' \(3,\)",
    ),
    (
        {"ann": ((x4, y4), (x4, y4)), "bob": ((x4 * np.nan, y4), (x4, y4))},
        "client 'bob': x_train holds nan in example 0",
    ),
    (
        {"ann": ((x4, y4), (x4, y4)), "bob": ((x4, ["a", "b", "a", "b"]), (x4, y4))},
        "client 'bob': labels are text, those of client 'ann' numbers",
    ),
    ({"ann": x4}, "client 'ann' has a ndarray, not a pair of training and test data"),
    ({"ann": (x4, y4)}, "client 'ann' has a ndarray, not a pair of x and y"),
    ({"ann": {"test": (x4, y4)}}, "client 'ann' has test, but no 'train'"),
    ({"ann": ((x4, y4), (x4, y4)), 3: ((x4, y4), (x4, y4))}, "all whole numbers or all text"),
    ({"ann": {"train": {"a": [1.0, 2.0], "c": [0, 1]}}}, "no column 'label'; there are a, c"),
    ({"ann": {"train": {"a": ["x", "y"], "label": [0, 1]}}}, "column 'a' holds x; features are"),
    ({"ann": {"train": {"a": [1.0], "label": [0]}}}, "'ann' has 1 examples and no test data"),
    ({"ann": {"train": {"a": [], "label": []}}}, "client 'ann' has a table without examples"),
    (
        {"ann": ((x4, y4 + 0.5), (x4, y4))},
        r"whole numbers from -2\^53 to 2\^53, or any numbers if the task is regression$",
    ),
    ({}, "there are no clients"),
]


@pytest.mark.parametrize(("clients", "message"), BAD)
def test_bad_clients(clients: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_clients(clients)


def test_one_client_is_enough() -> None:
    made = from_clients({"ann": (some(4), some(2))})
    assert len(make_partition(made, "natural", 1, seed=0)) == 1


# .npz with columns of clients


def test_npz_with_clients(tmp_path: Path) -> None:
    (x, y), (x_test, y_test) = some(6), some(4)
    arrays: dict[str, Any] = {"x_train": x, "y_train": y, "x_test": x_test, "y_test": y_test}
    path = tmp_path / "mine.npz"
    np.savez(path, **arrays, client_train=list("babbab"), client_test=list("abab"))
    assert natural_clients(path) == 2
    made = load(path)
    assert made.client_names == ("a", "b")
    partition = make_partition(made, "natural", 2, seed=0)
    assert [part.tolist() for part in partition.train] == [[1, 4], [0, 2, 3, 5]]
    experiment = Experiment.of(data=str(path))
    assert (experiment.partition.kind, experiment.partition.clients) == ("natural", 2)
    assert experiment.training.m == 1
    np.savez(path, **arrays, client_train=list("babbab"))
    with pytest.raises(ValueError, match="client_test is missing, but there is client_train"):
        from_npz(path)
    np.savez(path, **arrays, client_train=list("babbab"), client_test=list("abac"))
    with pytest.raises(ValueError, match=r"mine.npz: client 'c' has no training examples"):
        from_npz(path)
    np.savez(path, **arrays, client_train=[1, 2, 1, 2, 3, 3], client_test=[1, 2, 2, 1])
    with pytest.raises(ValueError, match="client 3 has no test examples"):
        from_npz(path)
    np.savez(path, **arrays, client_train=[1, 2], client_test=[1, 2, 2, 1])
    with pytest.raises(ValueError, match="x_train has 6 examples and client_train 2 ids"):
        from_npz(path)


def test_some_of_the_clients() -> None:
    made = from_clients({i: (some(4 + i % 3), some(2)) for i in range(9)})
    largest = make_partition(made, "natural", 4, seed=0)
    assert largest.names == ("1", "2", "5", "8")  # three of size 6, then the first of size 5
    a, b = (make_partition(made, "natural", 4, choice="random", seed=s).names for s in (0, 1))
    assert a != b
    assert make_partition(made, "natural", 4, choice="random", seed=0).names == a
    with pytest.raises(ValueError, match="clients is 10; data has 9 of its own"):
        make_partition(made, "natural", 10, seed=0)
    with pytest.raises(ValueError, match="digits has no clients of its own"):
        make_partition(load("digits"), "natural", 3, seed=0)


# Folders


def write_csv(path: Path, rows: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("height,width,label\n" + rows)


CSV = "1,2,cat\n2,1,dog\n1.5,2.5,cat\n2.5,1,dog\n"


@pytest.mark.parametrize("layout", ["{part}/{name}.csv", "{name}_{part}.csv", "{name}.{part}.csv"])
def test_folder_with_parts(tmp_path: Path, layout: str) -> None:
    for name in ("ann", "bob"):
        for part in ("train", "test"):
            write_csv(tmp_path / layout.format(part=part, name=name), CSV)
    made = load(tmp_path)
    assert made.client_names == ("ann", "bob")
    assert natural_clients(tmp_path) == 2
    assert made.label_names == ("cat", "dog")
    assert (len(made.x_train), len(made.x_test)) == (8, 8)
    np.testing.assert_array_equal(made.x_train[0], [1, 2])


def test_folder_of_whole_files(tmp_path: Path) -> None:
    x, y = some(10)
    np.savez(tmp_path / "ann.npz", x=x, y=y)
    np.savez(tmp_path / "bob.npz", x_train=x, y_train=y, x_test=x[:3], y_test=y[:3])
    made = from_folder(tmp_path, test_fraction=0.3)
    assert made.clients is not None
    assert [np.bincount(part).tolist() for part in made.clients] == [[7, 10], [3, 3]]
    again = from_folder(tmp_path, test_fraction=0.3)
    np.testing.assert_array_equal(made.x_test, again.x_test)


def test_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pyarrow.table({"a": [1.0, 2.0, 3.0, 4.0], "kind": ["x", "y", "x", "y"]})
    parquet.write_table(table, tmp_path / "ann.parquet")
    made = load(tmp_path, label="kind", test_fraction=0.5)
    assert made.label_names == ("x", "y")
    (tmp_path / "ann.parquet").write_bytes(b"no")
    with pytest.raises(ValueError, match=r"client 'ann': ann.parquet cannot be read as Parquet"):
        load(tmp_path)


def test_parquet_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    (tmp_path / "ann.parquet").touch()
    with pytest.raises(ValueError, match=r"needs pyarrow, .* pip install 'adcs\[data\]'"):
        load(tmp_path)


def test_bad_folders(tmp_path: Path) -> None:
    def refused(message: str, **settings: Any) -> None:
        with pytest.raises(ValueError, match=message):
            load(tmp_path, **settings)

    refused("it has no files of clients")
    (tmp_path / "eve.csv").write_text("age,dose,label\n")
    refused("client 'eve' has a table without examples")
    (tmp_path / "eve.csv").unlink()
    write_csv(tmp_path / "ann_train.csv", CSV)
    refused("client 'ann' has no test data")
    write_csv(tmp_path / "ann_test.csv", CSV)
    assert load(tmp_path).client_names == ("ann",)
    write_csv(tmp_path / "bob.csv", CSV.replace("2.5,1,dog", "2.5,dog"))
    refused("client 'bob': bob.csv, row 5 has 2 cells, not 3")
    write_csv(tmp_path / "bob.csv", CSV.replace("1.5", "tall"))
    refused("client 'bob': bob.csv: column 'height' holds 'tall' in row 4; features are numbers")
    write_csv(tmp_path / "bob.csv", CSV.replace("1.5", ""))
    refused("column 'height' is empty in row 4")
    write_csv(tmp_path / "bob.csv", CSV.replace("1.5", "nan"))
    refused("client 'bob': x_.* holds nan")
    (tmp_path / "bob.csv").write_text("height,label\n1,cat\n2,dog\n")
    refused("client 'bob' has the columns height, label, client 'ann' height, width, label")
    refused("has no column 'kind'; there are height, width, label", label="kind")
    (tmp_path / "bob.csv").write_bytes(b"\xff\xfe\x00")
    refused("bob.csv is not a CSV file of UTF-8 text")


# LEAF


def write_leaf(folder: Path, part: str, users: dict[str, tuple[Any, Any]]) -> None:
    held = {
        "users": list(users),
        "num_samples": [len(y) for _, y in users.values()],
        "user_data": {user: {"x": x, "y": y} for user, (x, y) in users.items()},
    }
    (folder / part).mkdir(exist_ok=True)
    (folder / part / "all_data.json").write_text(json.dumps(held))


def test_leaf_numbers(tmp_path: Path) -> None:
    write_leaf(tmp_path, "train", {"f1": ([[0.0, 1.0], [1.0, 0.0]], [3, 5]), "f0": ([[1, 1]], [3])})
    write_leaf(tmp_path, "test", {"f0": ([[1.0, 1.0]], [5]), "f1": ([[0, 1]], [3])})
    made = load(tmp_path)
    assert made.client_names == ("f0", "f1")
    assert made.labels == (3, 5)
    assert natural_clients(tmp_path) == 2


def test_leaf_text(tmp_path: Path) -> None:
    write_leaf(tmp_path, "train", {"HAM": (["to be", "o be,"], [",", " "])})
    write_leaf(tmp_path, "test", {"HAM": (["be to"], [" "])})
    made = from_leaf(tmp_path)
    assert made.vocabulary == 6
    assert made.x_train[0].tolist() == [5, 4, 0, 2, 3]  # " ,beot"
    assert made.scale == 1.0
    write_leaf(tmp_path, "test", {"HAM": (["be TO"], [" "])})
    with pytest.raises(ValueError, match="client 'HAM': the character 'T' is in no training"):
        from_leaf(tmp_path)
    write_leaf(tmp_path, "test", {"HAM": (["be"], [" "]), "OPH": (["be"], [" "])})
    with pytest.raises(ValueError, match="client 'OPH' has no training data"):
        from_leaf(tmp_path)
    (tmp_path / "test" / "all_data.json").write_text("[1]")
    with pytest.raises(ValueError, match="not in LEAF's format"):
        from_leaf(tmp_path)


# Hugging Face and flwr-datasets, by the real libraries with local data


def test_hugging_face(oracle: Callable[[str], ModuleType]) -> None:
    datasets = oracle("datasets")
    made = datasets.Dataset.from_dict(
        {"pixels": [[i, i + 1.0] for i in range(10)], "label": [i % 2 for i in range(10)]}
    )
    split = made.train_test_split(test_size=4, seed=0)
    found = from_clients({"a": split, "b": made}, test_fraction=0.3)
    assert found.clients is not None
    assert [np.bincount(part).tolist() for part in found.clients] == [[6, 7], [4, 3]]
    np.testing.assert_array_equal(found.x_train[:6], np.array(split["train"]["pixels"]))
    pixels = np.arange(2 * 4 * 4, dtype=np.uint8).reshape(2, 4, 4)
    images = datasets.Dataset.from_dict(
        {"image": list(pixels), "label": [0, 1]},
        features=datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")}),
    )
    shown = from_clients({0: (images, images)}, features="image")
    assert shown.input_shape == (4, 4)
    np.testing.assert_array_equal(shown.x_train, pixels.reshape(2, 16))
    assert shown.scale == 1 / 255


def test_flwr_datasets(oracle: Callable[[str], ModuleType]) -> None:
    datasets = oracle("datasets")
    partitioners = oracle("flwr_datasets.partitioner")
    made = datasets.Dataset.from_dict(
        {"a": [float(i) for i in range(40)], "label": [i % 2 for i in range(40)]}
    )
    partitioner = partitioners.IidPartitioner(num_partitions=4)
    partitioner.dataset = made
    found = from_partitions(partitioner, test_fraction=0.2)
    assert found.client_names == ("0", "1", "2", "3")
    assert found.clients is not None
    assert [np.bincount(part).tolist() for part in found.clients] == [[8] * 4, [2] * 4]
    first = np.concatenate([found.x_train[:8, 0], found.x_test[:2, 0]])
    assert sorted(first) == sorted(partitioner.load_partition(0)["a"])


def test_objects_that_hold_no_partitions() -> None:
    with pytest.raises(ValueError, match="partitions is a list, not a partitioner"):
        from_partitions([1])


# Tasks and metrics


@given(
    st.lists(st.tuples(st.integers(-5, 5), st.booleans()), min_size=2, max_size=40).filter(
        lambda pairs: len({positive for _, positive in pairs}) == 2
    )
)
def test_auc_is_sklearn_s(pairs: list[tuple[int, bool]]) -> None:
    from sklearn.metrics import roc_auc_score

    scores, positive = zip(*pairs, strict=True)
    assert metrics.auc(scores, positive) == pytest.approx(roc_auc_score(positive, scores))


def regression_clients() -> dict[str, Any]:
    made = {}
    for i in range(3):
        x = RNG.standard_normal((20, 3))
        made[f"c{i}"] = ((x, x @ [1.0, -2.0, 0.5] + i), (x[:5], x[:5] @ [1.0, -2.0, 0.5] + i))
    return made


def test_rmse_and_loss_by_hand() -> None:
    held = regression_clients()
    federation = Federation.from_clients(held, task="regression", dtype=np.float64)
    model = MLP(3, 1, (4,), task="regression")
    w = model.initial(0)
    [(values, losses)] = federation.test(model, w[None])
    assert federation.metric == "rmse"
    for i, (_, (x, y)) in enumerate(held.values()):
        error = model.predict(w, x.astype(np.float32).astype(np.float64))[:, 0] - y
        assert values[i] == pytest.approx(np.sqrt((error**2).mean()))
        assert losses[i] == pytest.approx((error**2).mean())
    summary = federation.summary(values)
    assert summary["worst"] == values.max()
    assert summary["worst20"] == values.max()


@pytest.mark.parametrize("hidden", [(), (4,)])
def test_gradient_of_the_squared_error(hidden: tuple[int, ...]) -> None:
    model = MLP(3, 1, hidden, task="regression")
    w = RNG.standard_normal(model.size)
    x, y = RNG.standard_normal((6, 3)), RNG.standard_normal(6)
    loss, gradient = model.loss_and_gradient(w, x, y)
    assert loss == pytest.approx(((model.predict(w, x)[:, 0] - y) ** 2).mean())
    for i in range(model.size):
        step = np.zeros(model.size)
        step[i] = 1e-6
        up, down = (model.loss_and_gradient(w + s, x, y)[0] for s in (step, -step))
        assert gradient[i] == pytest.approx((up - down) / 2e-6, abs=1e-6)
    ws = np.stack([w, 2 * w])
    wide = model.wide(ws, np.stack([x, -x]), np.stack([y, y]))
    alone = model.loss_and_gradient(2 * w, -x, y)
    assert wide.losses[1, 1] == pytest.approx(alone[0])
    np.testing.assert_allclose(wide.gradients(1, np.array([1]))[0], alone[1])


def test_clients_of_one_class_have_no_auc() -> None:
    x = RNG.standard_normal((6, 2))
    both, one = np.array([0, 1, 0, 1, 0, 1]), np.zeros(6, dtype=int)
    federation = Federation.from_clients(
        {"a": ((x, both), (x, both)), "b": ((x, both), (x, one))}, metric="auc"
    )
    model = MLP(2, 2)
    w = RNG.standard_normal(model.size).astype(np.float32)
    [(values, _)] = federation.test(model, w[None])
    assert np.isnan(values[1])
    margin = np.diff(model.predict(w, x.astype(np.float32)), axis=1)[:, 0]
    assert values[0] == metrics.auc(margin, both == 1)
    assert federation.summary(values)["worst"] == values[0]


def test_metrics_fit_the_task() -> None:
    with pytest.raises(ValueError, match="metric auc takes two classes, digits has 10"):
        Federation(load("digits"), make_partition(load("digits"), "iid", 3, seed=0), metric="auc")
    with pytest.raises(ValueError, match=r"run.metric rmse is for regression, and data.task is"):
        Experiment.of(metric="rmse")
    with pytest.raises(ValueError, match=r"run.metric must be one of accuracy, auc, rmse"):
        Experiment.of(metric="mse")
    assert Experiment.of(task="regression").metric == "rmse"
    assert Experiment.of(task="regression").partition.kind == "iid"
    made = from_arrays(*some(6), *some(4), task="regression")
    with pytest.raises(ValueError, match="a dirichlet partition is one of classes"):
        make_partition(made, "dirichlet", 2, alpha=1.0, seed=0)
    with pytest.raises(ValueError, match="digits has classes; its task is classification"):
        load("digits", task="regression")
    with pytest.raises(ValueError, match="y_train holds nan at 0; values are finite"):
        from_arrays(x4, y4 * np.nan, x4, y4, task="regression")
    with pytest.raises(ValueError, match="values of a regression are numbers"):
        from_arrays(x4, list("abab"), x4, y4, task="regression")


# Defaults that follow from the data


def test_default_partitions() -> None:
    def defaults(**options: Any) -> tuple[str, int, int]:
        made = Experiment.of(**options)
        return made.partition.kind, made.partition.clients, made.training.m

    assert defaults() == ("by-class", 30, 18)
    assert defaults(data="shakespeare") == ("natural", 781, 18)
    assert defaults(data="shakespeare:clients=100") == ("natural", 100, 18)
    assert defaults(data="shakespeare", clients=30) == ("natural", 30, 18)
    assert defaults(data="smartwatch") == ("natural", 10, 6)
    assert defaults(data="smartwatch", m=3) == ("natural", 10, 3)
    assert defaults(data="vowel", partition="iid") == ("iid", 30, 18)
    assert defaults(data="digits", clients=20) == ("by-class", 20, 18)
    changed = Experiment.of(data="vowel").replace(data="digits")
    assert (changed.partition, changed.training.m) == (Experiment().partition, 18)
    kept = Experiment.of(data="vowel", partition="iid", clients=12, m=3).replace(data="digits")
    assert (kept.partition.kind, kept.partition.clients) == ("iid", 12)
