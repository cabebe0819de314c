"""Networks from a trace: the CSV file, its faults, and runs on it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adcs.cli.options import merged
from adcs.experiments.config import Experiment, from_dict
from adcs.experiments.runner import check_trace, create_run, run_experiment
from adcs.run_folder import RunFolder
from adcs.simulation import Network, NetworkSettings, Trace, read_trace


@pytest.fixture
def write(tmp_path):
    def write(text: str, name: str = "trace.csv") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


FULL = """client,compute_seconds,up_bytes_per_second,down_bytes_per_second,online
1,2.5,2e5,4e6,0-2 6
0,0.5,1e6,8e6,
2,30,5e4,1e6,3-9
"""


def network(path: Path, clients: int, **settings) -> Network:
    return Network(NetworkSettings(trace=str(path), **settings), clients, seed=3)


def test_rows_belong_to_the_clients_that_they_number(write):
    found = network(write(FULL), 3)
    assert found.compute_seconds.tolist() == [0.5, 2.5, 30.0]
    assert found.up.tolist() == [1e6, 2e5, 5e4]
    assert found.down.tolist() == [8e6, 4e6, 1e6]
    assert [found.available(r) for r in (0, 2, 3, 6)] == [(0, 1), (0, 1), (0, 2), (0, 1, 2)]
    # Ten rounds long, then again from the start.
    assert all(found.available(r) == found.available(r + 10) for r in range(10))
    seconds = found.seconds(np.array([1]), down=4e6, work=2.0, up=1e5)
    assert seconds.tolist() == [1.0 + 5.0 + 0.5]


def test_more_clients_than_rows_repeat_them_and_more_rows_are_left_out(write):
    path = write(FULL)
    assert network(path, 5).compute_seconds.tolist() == [0.5, 2.5, 30.0, 0.5, 2.5]
    assert network(path, 5).available(1) == (0, 1, 3, 4)
    assert network(path, 2).compute_seconds.tolist() == [0.5, 2.5]
    assert network(path, 2).available(4) == (0,)


def test_missing_columns_are_drawn_as_without_a_trace(write):
    found = network(write("compute_seconds\n2\n\n3\n"), 4, availability=0.5)
    drawn = Network(NetworkSettings(availability=0.5), 4, seed=3)
    assert found.compute_seconds.tolist() == [2.0, 3.0, 2.0, 3.0]
    np.testing.assert_array_equal(found.up, drawn.up)
    assert [found.available(r) for r in range(200)] == [drawn.available(r) for r in range(200)]


@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 30), st.integers(0, 5)), max_size=4),
        min_size=1,
        max_size=5,
    ),
    st.integers(1, 8),
)
def test_online_is_membership_of_an_interval(tmp_path_factory, rows, clients):
    path = tmp_path_factory.mktemp("trace") / "t.csv"
    cells = [" ".join(f"{a}-{a + k}" if k else f"{a}" for a, k in row) for row in rows]
    path.write_text("online\n" + "".join(f'"{cell or "0-40"}"\n' for cell in cells))
    trace = read_trace(path)
    ends = [a + k for row in rows for a, k in row] + [40 for row in rows if not row]
    for server_round in range(90):
        now = server_round % (max(ends) + 1)
        member = [not row or any(a <= now <= a + k for a, k in row) for row in rows]
        expected = [member[c % len(rows)] for c in range(clients)]
        assert trace.online(server_round, clients).tolist() == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: a trace must have a line of column names and at least one row"),
        ("online\n", "line 1: a trace must have a line of column names"),
        ("client\n0\n", "line 1: a trace must have a column compute_seconds, up_"),
        ("compute_second\n1\n", "line 1: unknown column 'compute_second'; did you mean compute_"),
        ("online,online\n", "line 1: the column online must be there once, got it 2x"),
        ("compute_seconds\n1\n\n0\n", "line 4: compute_seconds must be a number > 0, got '0'"),
        ("compute_seconds\n1\nfast\n", "line 3: compute_seconds must be a number > 0, got 'fast'"),
        ("compute_seconds\nnan\n", "line 2: compute_seconds must be a number > 0, got 'nan'"),
        ("compute_seconds\ninf\n", "line 2: compute_seconds must be a number > 0, got 'inf'"),
        ("compute_seconds\n1,2\n", "line 2: a row must have 1 cells, got 2"),
        ("online\n0-\n", "line 2: online must be rounds such as 0-49 100-149, below 1000000000"),
        ("online\n5-3\n", "got '5-3'"),
        ("online\n0-4 9999999999\n", "got '9999999999'"),
        ("client,online\n-1,\n", "line 2: client must be a whole number >= 0, got '-1'"),
        (
            "client,online\n0,\n0,\n1,\n",
            "line 3: client must number the rows 0, 1, 2, ..., got 0 twice",
        ),
        (
            "client,online\n0,\n2,\n",
            "line 3: client must number the rows 0, 1, 2, ..., 1 is missing",
        ),
    ],
)
def test_a_bad_file_is_one_sentence_with_the_line(write, text, message):
    path = write(text)
    with pytest.raises(ValueError, match="the trace") as raised:
        read_trace(path)
    assert message in str(raised.value)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_files_that_are_no_text_or_not_there(tmp_path, write):
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="is not UTF-8 text"):
        read_trace(tmp_path / "binary.csv")
    write(FULL)
    with pytest.raises(ValueError, match=r"cannot be read: No such file.*trace\.csv"):
        read_trace(tmp_path / "trase.csv")
    with pytest.raises(ValueError, match="cannot be read"):
        read_trace(tmp_path)


def test_settings_that_contradict_a_trace_are_refused(write):
    with pytest.raises(ValueError, match=r"network\.availability must be 1 where the trace"):
        network(write(FULL), 3, availability=0.5)
    with pytest.raises(ValueError, match=r"network\.trace must be a file, got 3"):
        NetworkSettings(trace=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"network\.trace must be a text, got 3"):
        from_dict({"network": {"trace": 3}})


def test_the_fingerprint_is_that_of_the_content(write):
    base = read_trace(write(FULL)).fingerprint()
    assert read_trace(write(FULL.replace("0-2 6", "0-2  6-6"), "same.csv")).fingerprint() == base
    for old, new in (("2.5", "2.6"), ("6\n", "7\n"), ("3-9", "3-10"), ("2e5", "2.1e5")):
        changed = write(FULL.replace(old, new), "other.csv")
        assert read_trace(changed).fingerprint() != base
    assert Trace(1, {}).fingerprint() != base


def test_paths_are_absolute_and_looked_up_beside_the_config(write, monkeypatch, tmp_path):
    write(FULL)
    monkeypatch.chdir(tmp_path)
    experiment = Experiment.of(network={"trace": "trace.csv"})
    assert experiment.as_dict()["network"]["trace"] == str(tmp_path.resolve() / "trace.csv")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    toml = write('[network]\ntrace = "trace.csv"\n', "case.toml")
    found = from_dict(merged(toml, {}))
    assert found.network is not None
    assert found.network.trace == str(tmp_path.resolve() / "trace.csv")


def small(path: Path, clients: int, schedulers: list[str], **options) -> Experiment:
    network = {"trace": str(path), **options.pop("network", {})}
    given = {"data": "synthetic", "partition": "iid", "lr": 0.1, "clients": clients, **options}
    return Experiment.of(network=network, schedulers=schedulers, **given)


def test_a_run_on_a_trace_is_refused_when_the_trace_has_changed(write, tmp_path):
    path = write(FULL)
    deadline = {"deadline": 20.0}
    experiment = small(path, 6, ["Uniform", "ADCS"], m=2, rounds=12, network=deadline)
    folder = create_run(tmp_path / "run", experiment)
    run_experiment(folder, experiment, jobs=1)
    last = list(RunFolder.open(tmp_path / "run").records())[-1]
    assert last["seconds"] > 0.0
    held = folder.config["trace_fingerprint"]
    check_trace(experiment, held)
    path.write_text(FULL.replace("0.5", "0.6"))
    with pytest.raises(ValueError, match="is no longer what this run began with"):
        run_experiment(folder, experiment, jobs=1)
    path.write_text(FULL)
    run_experiment(folder, experiment, jobs=1)


def test_rounds_without_any_client_online(write):
    path = write("online\n0-1\n0-1 5\n")
    names = ["Uniform", "ADCS", "LiveADCS", "PowerOfChoice"]
    simulation = small(path, 2, names, m=1).simulation(0)
    simulation.run(8)
    # Rounds 0, 1 and 5, and 6 and 7 as rounds 0 and 1 again.
    assert all(run.counts.sum() == 5 for run in simulation.runs)
    assert all(run.backoff.total == 0 for run in simulation.runs)
