"""Comparisons from Python: inputs, run folder, tables, figures, errors."""

from __future__ import annotations

import base64
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import adcs
from adcs.cli.app import app
from adcs.experiments import comparison as module
from adcs.experiments.comparison import Comparison, Differences
from adcs.experiments.config import Experiment
from adcs.experiments.inputs import data_settings, object_spec, scheduler_spec, scheduler_specs
from adcs.experiments.runner import run_task, tasks
from adcs.run_folder import RunFolder
from adcs.simulation import load
from adcs.simulation.datasets import from_arrays

SMALL: dict[str, Any] = {"data": "synthetic:clusters=2,dimension=3", "clients": 6, "m": 2}
SMALL |= {"rounds": 6, "eval_every": 3, "seeds": 3}
MINE = """
import adcs

class Mine(adcs.Scheduler):
    def __init__(self, *, patience=1, **more):
        super().__init__(**more)
        self.patience = patience

    def _select(self, server_round, clients, m):
        return adcs.Cohort.of(self.take(clients, m))
"""


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run tasks without worker processes, which take seconds to start."""

    def run(folder: RunFolder, experiment: Experiment, **more: Any) -> None:
        for task in tasks(experiment, folder.config.get("part")):
            run_task(folder, experiment, task, lambda _: None)
        if more.get("progress"):
            more["progress"](1, 1)

    monkeypatch.setattr(module, "run_experiment", run)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of three schedulers."""
    path = tmp_path_factory.mktemp("comparison") / "run"
    specs = ["Uniform", "ADCS(theta=0.5)", "DivFL"]
    found = Comparison.create(Experiment.of(schedulers=specs, **SMALL), path)
    for task in tasks(found.experiment):
        run_task(RunFolder.open(path), found.experiment, task, lambda _: None)
    return path


def files(folder: Path, *names: str) -> dict[str, bytes]:
    """Return what files hold; the page names the run folder, which is left out."""
    every = [path for path in folder.rglob("*") if path.is_file()]
    held = {str(path.relative_to(folder)): path.read_bytes() for path in every}
    if "report.html" in held:
        named = f'"folder":"{folder.name}"'.encode()
        held["report.html"] = held["report.html"].replace(named, b'"folder":""')
    return held


def test_python_writes_what_the_command_writes(tmp_path: Path) -> None:
    options = [f"--{name.replace('_', '-')}={value}" for name, value in SMALL.items()]
    words = ["compare", "-s", "Uniform", "-s", "ours=ADCS(theta=0.5)", *options]
    result = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "command")])
    assert result.exit_code == 0, result.output
    schedulers = {"Uniform": "Uniform", "ours": adcs.ADCS(theta=0.5)}
    found = adcs.compare(schedulers, out=tmp_path / "python", progress=False, **SMALL)
    assert files(found.folder) == files(tmp_path / "command")
    assert found.table().splitlines()[1:] == Comparison.open(tmp_path / "command").table(
    ).splitlines()[1:]  # fmt: skip
    assert not found.unfinished


def test_objects_are_made_anew_for_each_seed(tmp_path: Path) -> None:
    """What an object has observed does not count, and each run's seed is its scheduler's."""
    used = adcs.PowerOfChoice(candidates=3)
    report = adcs.ClientReport(0, 0, loss=9.0)
    used.observe(0, [report], "probe")
    fresh, seen = (
        adcs.compare({"a": each}, out=tmp_path / name, progress=False, **SMALL)
        for name, each in (("fresh", "PowerOfChoice(candidates=3)"), ("used", used))
    )
    assert files(fresh.folder / "records") == files(seen.folder / "records")
    own = adcs.compare({"a": adcs.PowerOfChoice(seed=7, candidates=3)}, out=tmp_path / "own",
                       progress=False, **SMALL)  # fmt: skip
    assert own.experiment.schedulers["a"] == "PowerOfChoice(seed=7, candidates=3)"
    made = own.experiment.simulation(1).runs[0].scheduler
    assert made.seed == 7
    assert fresh.experiment.simulation(1).runs[0].scheduler.seed == 1


def test_lists_and_mappings(tmp_path: Path) -> None:
    assert scheduler_specs(adcs.Uniform()) == {"Uniform": "Uniform()"}
    assert scheduler_specs("ADCS") == {"ADCS": "ADCS"}
    assert scheduler_specs({"a": adcs.ADCS(sketch=adcs.Sketcher(size=8))})["a"].startswith("ADCS(")
    with pytest.raises(ValueError, match=r"distinct labels, got 'Uniform' twice"):
        scheduler_specs(["Uniform", "Uniform"])
    with pytest.raises(ValueError, match=r"got <class .*Uniform'>; a class has to be called"):
        scheduler_specs([adcs.Uniform])  # type: ignore[list-item]
    with pytest.raises(ValueError, match=r"must be a list of schedulers or specs, got 3"):
        scheduler_specs(3)  # type: ignore[arg-type]


def test_own_scheduler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine_for_compare.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    from mine_for_compare import Mine  # type: ignore[import-not-found]

    spec = scheduler_spec(Mine(patience=3))
    assert spec == f"{tmp_path / 'mine_for_compare.py'}:Mine(patience=3)"
    found = adcs.compare([Mine(patience=3), "Uniform"], out=tmp_path / "run", **SMALL)
    assert list(found.experiment.schedulers) == ["Mine(patience=3)", "Uniform"]
    assert len(found.to_pandas()) == 2 * 3 * 3
    monkeypatch.chdir(tmp_path)
    assert scheduler_spec("mine_for_compare.py:Mine") == f"{tmp_path}/mine_for_compare.py:Mine"


def test_classes_that_no_process_can_import() -> None:
    class Inside(adcs.Uniform):
        pass

    with pytest.raises(ValueError, match=r"Inside is defined inside a function or class"):
        scheduler_spec(Inside())
    notebook = type("Typed", (adcs.Uniform,), {"__module__": "__main__"})
    main = sys.modules["__main__"]
    held = getattr(main, "__file__", None), main.__spec__
    try:
        main.__file__, main.__spec__ = None, None  # type: ignore[assignment]
        with pytest.raises(ValueError, match=r"Typed is defined in a notebook .*%%writefile"):
            scheduler_spec(notebook())
    finally:
        main.__file__, main.__spec__ = held  # type: ignore[assignment]
    assert object_spec(load, "model") == "adcs.simulation.datasets.registry:load"
    with pytest.raises(ValueError, match=r"model 3 cannot be made again"):
        object_spec(3, "model")


def own_data(**more: Any) -> Any:
    rng = np.random.default_rng(0)
    y = np.repeat(["a", "b", "c"], 20)
    x = rng.standard_normal((60, 2, 2)) + np.repeat(np.arange(3), 20)[:, None, None]
    return from_arrays(x, y, x[::2], y[::2], name="own", **more)


@pytest.mark.parametrize("scale", [None, 0.5])
def test_data_in_memory(tmp_path: Path, scale: float | None) -> None:
    data = own_data(scale=scale)
    settings = {**SMALL, "data": data}
    found = adcs.compare(["Uniform"], out=tmp_path / "a", progress=False, **settings)
    held = found.experiment.dataset()
    np.testing.assert_allclose(held.x_train * held.scale, data.x_train * data.scale, rtol=1e-6)
    assert held.labels == data.labels
    assert held.input_shape == data.input_shape
    again = adcs.compare(["Uniform"], out=tmp_path / "b", progress=False, **settings)
    assert again.experiment == found.experiment  # The same file, by its fingerprint.
    assert len(list(tmp_path.glob("data-*.npz"))) == 1
    assert Path(found.experiment.data.name).parent == tmp_path


def test_data_by_name_and_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = load("synthetic:clusters=2,dimension=3")
    assert data_settings(named, tmp_path) == {"data": "synthetic:clusters=2,dimension=3"}
    assert not list(tmp_path.iterdir())
    monkeypatch.chdir(tmp_path)
    assert data_settings("mine.npz", tmp_path) == {"data": str(tmp_path / "mine.npz")}
    with pytest.raises(ValueError, match=r"data must be the name of a data set.*got 3"):
        data_settings(3, tmp_path)
    grouped = own_data(groups=(np.zeros(60, dtype=np.int64), np.zeros(30, dtype=np.int64)))
    with pytest.raises(ValueError, match=r"'own' has groups, which an .npz file does not hold"):
        data_settings(grouped, tmp_path)
    assert not list(tmp_path.glob("*.npz"))


def test_resume(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"resume=True resumes the run in out; give out"):
        adcs.compare(["Uniform"], resume=True, **SMALL)
    whole = adcs.compare(["Uniform"], out=tmp_path / "whole", progress=False, **SMALL)
    begun = Comparison.create(whole.experiment, tmp_path / "begun")
    first = tasks(begun.experiment)[0]
    run_task(RunFolder.open(begun.folder), begun.experiment, first, lambda _: None)
    assert "Unfinished: 2 of 3 tasks are not done." in begun.notes
    assert "Unfinished" in begun.table()
    settings = {"out": tmp_path / "begun", "resume": True, "progress": False, **SMALL}
    done = adcs.compare(["Uniform"], **settings)
    assert files(done.folder) == files(whole.folder)
    assert files(adcs.compare(resume=done.folder).folder) == files(whole.folder)
    with pytest.raises(ValueError, match=r"a run of other settings, training.rounds 6, not 9"):
        adcs.compare(["Uniform"], **{**settings, "rounds": 9})
    with pytest.raises(ValueError, match=r"resume keeps the settings of .*; leave out rounds"):
        adcs.compare(resume=done.folder, rounds=9)
    with pytest.raises(FileExistsError, match=r"already holds a run; resume it"):
        adcs.compare(["Uniform"], **{**settings, "resume": False})
    with pytest.raises(FileNotFoundError, match=r"there is no such folder; did you mean .*whole"):
        Comparison.open(tmp_path / "whol")


def test_default_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    one = adcs.compare(["Uniform"], progress=False, **SMALL)
    part = adcs.compare(["Uniform"], progress=False, part=(1, 4), **SMALL)
    assert one.folder == Path("runs/compare-1")
    assert part.folder == Path("runs/compare-part1of4-1")
    assert part.part == (1, 4)
    assert not (part.folder / "summary.md").exists()


def test_pandas(path: Path) -> None:
    pytest.importorskip("pandas")
    frame = Comparison.open(path).to_pandas()
    assert list(frame.columns[:3]) == ["scheduler", "seed", "server_round"]
    assert list(frame["scheduler"].unique()) == ["Uniform", "ADCS(theta=0.5)", "DivFL"]
    assert sorted(frame["seed"].unique()) == [0, 1, 2]
    assert len(frame) == 3 * 3 * 3
    assert frame["worst"].between(0, 1).all()
    assert "accuracy" not in frame


def test_missing_pandas(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"to_pandas needs pandas.*pip install pandas"):
        Comparison.open(path).to_pandas()


def test_differences(path: Path) -> None:
    """As by hand: SciPy's paired t-test, and Holm's correction of two."""
    from scipy import stats

    pytest.importorskip("pandas")
    found = Comparison.open(path)
    against = found.differences("DivFL")
    assert isinstance(against, Differences)
    assert list(against) == ["Uniform", "ADCS(theta=0.5)"]
    frame = found.to_pandas()
    last = frame[frame["server_round"] == 6].pivot(
        index="seed", columns="scheduler", values="average"
    )
    p = {}
    for label in against:
        gap = last[label] - last["DivFL"]
        np.testing.assert_allclose(against[label]["average"].mean, gap.mean())
        p[label] = stats.ttest_rel(last[label], last["DivFL"]).pvalue
    small, large = sorted(p, key=lambda label: p[label])
    first = min(1.0, 2 * p[small])
    np.testing.assert_allclose(against[small]["average"].p, first)
    np.testing.assert_allclose(against[large]["average"].p, max(first, min(1.0, p[large])))
    assert "Paired differences to DivFL" in str(against)
    assert "p by Holm" in against._repr_html_()
    assert found.differences().baseline == "Uniform"
    with pytest.raises(ValueError, match=r"baseline .*Unifrom.*did you mean Uniform"):
        found.differences("Unifrom")


def test_table_and_html(tmp_path: Path, path: Path) -> None:
    found = Comparison.open(path)
    table = found.table()
    assert "95 % interval over 3 seeds" in table
    assert [line.split("  ")[0] for line in table.splitlines()[2:]] == [
        "Uniform",
        "ADCS(theta=0.5)",
        "DivFL",
    ]
    html = found._repr_html_()
    assert html.count("<table>") == 2
    assert str(path) in html
    (image,) = re.findall(r'<img src="data:image/png;base64,([^"]+)" alt="[^"<]+">', html)
    assert base64.b64decode(image, validate=True).startswith(b"\x89PNG")
    evil = Comparison.create(
        Experiment.of(**{**SMALL, "schedulers": {"<script>": "Uniform"}}), tmp_path / "<b>"
    )
    html = evil._repr_html_()
    assert "<script>" not in html
    assert "<b>/" not in html
    assert "&lt;script&gt;" in html


def test_plot(path: Path) -> None:
    import matplotlib
    from matplotlib.figure import Figure

    backend = matplotlib.get_backend()
    found = Comparison.open(path)
    figure = found.plot()
    assert isinstance(figure, Figure)
    assert len(figure.axes) == 3
    assert len(figure.legends[0].get_texts()) == 3
    assert figure._repr_png_().startswith(b"\x89PNG")  # type: ignore[attr-defined]
    assert len(found.plot("worst", against="bytes").axes) == 1
    assert matplotlib.get_backend() == backend
    with pytest.raises(ValueError, match=r"metric .*wurst"):
        found.plot("wurst")
    with pytest.raises(ValueError, match=r"against .*rounds"):
        found.plot(against="rounds")


def test_nothing_to_draw_yet(tmp_path: Path) -> None:
    found = Comparison.create(Experiment.of(schedulers=["Uniform"], **SMALL), tmp_path / "run")
    with pytest.raises(ValueError, match=r"has no records yet"):
        found.plot()
    assert len(found.to_pandas()) == 0


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"rouns": 3}, "unknown setting 'rouns'; did you mean rounds"),
        ({"m": 99}, "training.m must be at most 6"),
        ({"schedulers": []}, "schedulers must name at least one"),
        ({"schedulers": ["ADCS(thet=1)"]}, "did you mean theta"),
        ({"part": (3, 2)}, "part must be i of n with 1 <= i <= n, got 3 of 2"),
        ({"data": "digit"}, "did you mean digits"),
    ],
)
def test_bad_settings_are_one_sentence(
    tmp_path: Path, settings: dict[str, Any], match: str
) -> None:
    with pytest.raises(ValueError, match=match) as error:
        adcs.compare(**{"out": tmp_path / "run", **SMALL, **settings})
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


def test_progress_may_be_a_function(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []

    def progress(done: int, total: int) -> None:
        seen.append((done, total))

    adcs.compare(["Uniform"], out=tmp_path / "run", progress=progress, **SMALL)
    assert seen == [(1, 1)]


def test_an_interrupt_says_how_to_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "run_experiment", stop)
    with pytest.raises(KeyboardInterrupt) as error:
        adcs.compare(["Uniform"], out=tmp_path / "run", progress=False, **SMALL)
    assert error.value.__notes__ == [
        f"No records are lost: adcs.compare(resume={str(tmp_path / 'run')!r})."
    ]


SCRIPT = """
import adcs

class Mine(adcs.Uniform):
    pass

{guard}adcs.compare(["Uniform", {own}], data="synthetic:clusters=2,dimension=3", clients=6, m=2,
    rounds=6, eval_every=3, out={out!r}, jobs=1, progress=False)
"""


@pytest.mark.parametrize("own", ["Mine()", "'ADCS'"])
def test_a_script_without_a_guard_is_told(tmp_path: Path, own: str) -> None:
    """Worker processes run the script again, and so does the loading of its scheduler."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(guard="", own=own, out=str(tmp_path / "run")))
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode != 0
    assert "call adcs.compare under `if __name__ == '__main__':`" in done.stderr
    assert not (tmp_path / "runs").exists()


def test_a_script_with_its_own_scheduler(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    guard = 'if __name__ == "__main__":\n    '
    script.write_text(SCRIPT.format(guard=guard, own="Mine()", out=str(tmp_path / "run")))
    subprocess.run([sys.executable, script], check=True, cwd=tmp_path)
    found = Comparison.open(tmp_path / "run")
    assert found.experiment.schedulers["Mine"] == f"{script}:Mine()"
    assert not found.unfinished


def test_the_root_imports_it_lazily() -> None:
    assert {"compare", "Comparison"} <= set(adcs.__all__) & set(dir(adcs))
    code = (
        "import sys; sys.modules['pydantic'] = None\n"
        "import adcs\n"
        "try:\n    adcs.compare\nexcept ImportError as error:\n    print(error)\n"
        "print(hasattr(adcs, 'nothing'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    sentence, other = done.stdout.splitlines()
    assert sentence.startswith("adcs.compare needs pydantic, which is missing")
    assert "pip install 'adcs[cli]'" in sentence
    assert other == "False"
