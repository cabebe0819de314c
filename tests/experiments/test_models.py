"""Models by name and from files: in configs, on the command line, and in killed runs."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from adcs.cli.app import app
from adcs.experiments.config import Experiment
from adcs.experiments.models import make_model
from adcs.experiments.runner import create_run, run_experiment, tasks
from adcs.run_folder import RunFolder
from adcs.simulation import MLP, Dataset, from_arrays, load

pytest.importorskip("torch")

SMALL = ["--clients", "4", "--m", "2", "--rounds", "4", "--eval-every", "2", "--lr", "0.1"]

NET = """
import os, signal
from pathlib import Path
import torch
from torch import nn

class Net(nn.Module):
    calls = 0

    def __init__(self, features, classes, width=8, dropout=0.3):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(features, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(dropout),
            nn.Linear(width, classes),
        )

    def forward(self, x):
        Net.calls += 1
        order = Path(__file__).with_suffix(".kill")
        if self.training and Net.calls > 60 and order.exists():
            order.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return self.layers(x)

def wrong(features):
    return nn.Linear(features, 1)

def raises():
    raise KeyError("weights")

def diverges(features, classes):
    class Growing(nn.Linear):
        steps = 0
        def forward(self, x):
            Growing.steps += self.training
            return super().forward(x) * (torch.nan if Growing.steps > 20 else 1.0)
    return Growing(features, classes)

class Centroids:
    def __init__(self, features, classes, task=None):
        self.size, self._shape = features * classes, (classes, features)

    def initial(self, seed):
        import numpy as np
        return np.zeros(self.size)

    def loss_and_gradient(self, w, x, y):
        import numpy as np
        centres = w.reshape(self._shape)
        far = centres[y] - x
        gradient = np.zeros_like(centres)
        np.add.at(gradient, y, far / len(y))
        return float((far ** 2).sum() / len(y) / 2), gradient.reshape(-1)

    def predict(self, w, x):
        return -((w.reshape(self._shape)[None] - x[:, None]) ** 2).sum(2)
"""


@pytest.fixture
def net(tmp_path: Path) -> Path:
    path = tmp_path / "net.py"
    path.write_text(NET)
    return path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(2), 40)
    x = rng.standard_normal((80, 5)) + y[:, None]
    np.savez(tmp_path / "mine.npz", x_train=x, y_train=y, x_test=x[::2], y_test=y[::2])
    return tmp_path / "mine.npz"


def adcs(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def refused(result: Result) -> str:
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("adcs: ")]
    return line


def images() -> Dataset:
    x = np.random.default_rng(0).random((20, 8, 8)).astype(np.float32)
    return from_arrays(x, np.arange(20) % 2, x, np.arange(20) % 2, name="images")


def test_models_by_name() -> None:
    data = images()
    softmax, mlp = make_model("softmax", data), make_model(" mlp:6,3 ", data)
    assert isinstance(softmax, MLP)
    assert isinstance(mlp, MLP)
    assert (softmax.widths, mlp.widths) == ((64, 2), (64, 6, 3, 2))
    assert make_model("cnn", data).size == 16 * 9 + 16 + 32 * 16 * 9 + 32 + 32 * 4 * 2 + 2
    assert make_model("cnn(channels=(2, 3))", data).size == 20 + 57 + 3 * 4 * 2 + 2
    assert make_model("resnet8-gn", data).size > 70_000
    text = dataclasses.replace(images(), vocabulary=9, input_shape=(64,))
    assert make_model("char-gru(hidden=4)", text).size == 72 + 3 * (4 * 8 + 4 * 4 + 8) + 10
    assert make_model(softmax, data) is softmax


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("cnn", r"model 'cnn': it takes images of at least 4 x 4 pixels, .* shape \(5,\)"),
        ("resnet8-gn", "it takes images"),
        ("char-gru", "model 'char-gru': it takes token ids, and the data has no vocabulary"),
        ("cnn(chanels=(1, 2))", "CNN has no setting 'chanels'; did you mean channels?"),
        ("{net}:Met", "has no 'Met'; did you mean Net"),
        ("{net}:Net(widht=3)", "Net has no setting 'widht'; did you mean width?"),
        ("{net}:wrong", r"network wrong must return a score for each class: shape \(2, 2\), got"),
        ("{net}:raises", "KeyError: 'weights'"),
        ("{net}x.py:Net", "there is no file"),
        ("{net}", r"name its class or function: \S+:\w+( or \S+:\w+)*$"),
        ("cnnn", "unknown model 'cnnn'; did you mean cnn?"),
    ],
)
def test_models_that_do_not_fit(spec: str, sentence: str, net: Path, data: Path) -> None:
    with pytest.raises(ValueError, match=sentence):
        make_model(spec.format(net=net), load(str(data)))
    out = net.parent / "run"
    words = ["--data", data, "--model", spec.format(net=net), "--out", out]
    refused(adcs("compare", *SMALL, *words))
    assert not out.exists()


def test_tokens_are_no_quantities() -> None:
    text = dataclasses.replace(images(), vocabulary=9)
    with pytest.raises(ValueError, match="model 'softmax' takes quantities, and the features of"):
        make_model("softmax", text)


def test_a_network_of_one_s_own_on_the_command_line(net: Path, data: Path) -> None:
    out = net.parent / "run"
    words = ["--data", data, "--model", f"{net}:Net(width=5)", "--out", out, "--jobs", 1]
    result = adcs("compare", *SMALL, *words, "-s", "Uniform", "-s", "ADCS")
    assert result.exit_code == 0, result.output
    assert f"model {net}:Net(width=5)" in (out / "summary.md").read_text()
    assert RunFolder.open(out).config["model"] == {
        "name": f"{net}:Net(width=5)",
        "buffers": "average",
        "device": "cpu",
        "compile": False,
    }


def test_a_numpy_model_of_one_s_own(net: Path, data: Path) -> None:
    out = net.parent / "run"
    words = ["--data", data, "--model", f"{net}:Centroids", "--out", out, "--jobs", 1]
    result = adcs("compare", *SMALL, *words, "--rounds", 40, "-s", "Uniform")
    assert result.exit_code == 0, result.output
    assert list(RunFolder.open(out).records())[-1]["average"] > 0.8


def test_losses_that_are_not_finite_end_the_run(net: Path, data: Path) -> None:
    out = net.parent / "run"
    words = ["--data", data, "--model", f"{net}:diverges", "--out", out, "--jobs", 1]
    result = adcs("compare", *SMALL, *words, "--rounds", 40, "-s", "Uniform")
    assert "is nan for client" in refused(result)
    assert len(list(RunFolder.open(out).records())) >= 1  # Nothing is lost.


MISSING = """
import sys
sys.modules["torch"] = None
from adcs.cli import main
sys.argv = ["adcs", *sys.argv[1:]]
main()
"""


@pytest.mark.parametrize("spec", ["cnn", "{net}:Net"])
def test_missing_torch(spec: str, net: Path, data: Path) -> None:
    words = ["compare", "--data", str(data), "--model", spec.format(net=net), *SMALL]
    result = subprocess.run(
        [sys.executable, "-c", MISSING, *words], capture_output=True, text=True, cwd=net.parent
    )
    assert result.returncode == 2, result.stderr
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("adcs: ")]
    assert line.endswith("needs PyTorch: pip install 'adcs[torch]'")


def test_missing_torch_in_python() -> None:
    program = "import sys; sys.modules['torch'] = None\nfrom adcs.simulation import TorchModel"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "ImportError: TorchModel needs PyTorch: pip install 'adcs[torch]'" in result.stderr


KILLED = """
import sys
from pathlib import Path
from adcs.experiments import runner
from adcs.run_folder import RunFolder
runner.CHECKPOINT_SECONDS = -1.0
folder = RunFolder.open(Path(sys.argv[1]))
experiment = runner.experiment_of(folder)
runner.run_task(folder, experiment, runner.tasks(experiment)[0], lambda rounds: None)
"""


def records(folder: RunFolder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder.path / "records").iterdir()}


def test_a_run_killed_in_a_round_resumes_to_the_same_bytes(net: Path, data: Path) -> None:
    values: dict[str, Any] = {"data": str(data), "clients": 4, "m": 2, "rounds": 14, "lr": 0.1}
    experiment = Experiment.of(
        **values,
        model=f"{net}:Net",
        steps=3,
        eval_every=4,
        seeds=2,
        schedulers=["Uniform", "ADCS(refresh_every=5)"],
    )
    whole = create_run(net.parent / "whole", experiment)
    run_experiment(whole, experiment, jobs=2)
    folder = create_run(net.parent / "killed", experiment)
    net.with_suffix(".kill").touch()
    program = [sys.executable, "-c", KILLED, str(folder.path)]
    assert subprocess.run(program, env=dict(os.environ)).returncode == -signal.SIGKILL
    task = tasks(experiment)[0]
    checkpoint = folder.load_checkpoint(task.name)
    assert checkpoint is not None
    assert 0 < checkpoint["simulation"]["server_round"] < 14
    run_experiment(folder, experiment, jobs=1)
    assert records(folder) == records(whole)
