"""Settings: sections, TOML files, options, errors."""

from __future__ import annotations

import json
import re

import pytest

from adcs.experiments.config import (
    SETTINGS,
    Experiment,
    PartitionSettings,
    RunSettings,
    TrainingSettings,
    from_dict,
    from_toml,
)
from adcs.simulation.network import NetworkSettings
from adcs.simulation.round_settings import RoundSettings


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"m": 31}, "got 31"),
        ({"m": 0}, "got 0"),
        ({"rouns": 5}, "rounds"),
        ({"rounds": 1.5}, "1.5"),
        ({"rounds": True}, "True"),
        ({"lr": 0.0}, "0.0"),
        ({"lr": "fast"}, "fast"),
        ({"local": "some"}, "sgd, full"),
        ({"local": "full", "steps": 3}, "steps must be 1 where local is full, got 3"),
        ({"schedulers": []}, "at least one"),
        ({"schedulers": ["Unifrom"]}, "Uniform"),
        ({"schedulers": ["ADCS", "ADCS"]}, "distinct"),
        ({"schedulers": ["ADCS(theta=2)"]}, "theta"),
        ({"schedulers": ["ADCS(teta=1)"]}, "teta"),
        ({"schedulers": ["ADCS("]}, "must look like"),
        ({"baseline": "OSC"}, "OSC"),
        ({"network": {"speed": 1}}, "speed"),
        ({"network": {"dropout": 2}}, "dropout"),
        ({"model": "mlp:0"}, "the size of a hidden layer must be a whole number from 1 to"),
        ({"model": 5}, r"model\.name must be a text, got 5"),
        ({"model": "mlp:8,x"}, "model 'mlp:8,x' must look like softmax, mlp:64,32"),
        ({"model": "mlp"}, "model 'mlp' must look like softmax, mlp:64,32"),
        ({"model": "softmx"}, "unknown model 'softmx'; did you mean softmax?"),
        ({"model": "softmax(a=1)"}, "must look like softmax, mlp:64,32"),
        ({"model": "cnn(16)"}, "must look like softmax, mlp:64,32"),
        ({"device": "gpu"}, "model.device must be one of cpu, cuda, got 'gpu'"),
        ({"buffers": "drop"}, "model.buffers must be one of average, keep, got 'drop'"),
        ({"server_lr": "x"}, "server_lr must be a number > 0, got 'x'"),
        ({"lr": float("inf")}, "lr must be a number > 0, got inf"),
        ({"lr": float("nan")}, "lr must be a number > 0, got nan"),
        ({"lr": 10**400}, "lr must be a number > 0"),
        ({"paper_literal_weights": "no"}, "paper_literal_weights must be true or false"),
        ({"data_folder": 3}, r"data\.folder must be a text, got 3"),
        ({"baseline": ["a"]}, "baseline must be a text"),
        ({"schedulers": "ADCS"}, "a list of texts or a table of texts, got 'ADCS'"),
        ({"schedulers": 3}, "schedulers must be a list of texts or"),
        ({"schedulers": [3]}, "schedulers must be a list of texts or"),
        ({"schedulers": {"a": 1}}, "got {'a': 1}"),
        ({"partition_settings": {"clients": 5}}, "'clients' is no setting of a kind"),
        ({"partition_settings": 3}, "partition_settings must be a table of values, got 3"),
        ({"partition_settings": {"copies": "maybe"}}, "by-class copies must be true or false"),
        ({"partition": "shards", "partition_settings": {"per_client": 1.5}}, "a whole number"),
        ({"network": 3}, "network must be a table of values, got 3"),
        (
            {"network": {"deadline": "x"}},
            r"network\.deadline must be a number > 0 or adaptive, got 'x'",
        ),
        ({"network": {"availability": "x"}}, r"network\.availability must be a number > 0"),
        ({"network": {"spell": 2.5}}, r"network\.spell must be a whole number from 1 to"),
    ],
)
def test_wrong_values_are_named(values, named):
    with pytest.raises(ValueError, match=named):
        Experiment.of(**values)


def test_toml_round_trip(tmp_path):
    path = tmp_path / "case.toml"
    path.write_text(
        "[training]\nm = 6\n[run]\neval-every = 10\n"
        '[schedulers]\n"theta = 0.2" = "ADCS(theta=0.2)"\n'
        "[network]\navailability = 0.5\n"
    )
    experiment = from_dict(from_toml(path))
    assert (experiment.training.m, experiment.run.eval_every) == (6, 10)
    assert experiment.schedulers == {"theta = 0.2": "ADCS(theta=0.2)"}
    assert from_dict(json.loads(json.dumps(experiment.as_dict()))) == experiment


def test_broken_toml(tmp_path):
    path = tmp_path / "case.toml"
    path.write_text("m = = 6")
    with pytest.raises(ValueError, match="not valid TOML"):
        from_toml(path)
    with pytest.raises(ValueError, match="cannot be read"):
        from_toml(tmp_path / "none.toml")
    path.write_bytes(b'data = "\xff"')
    with pytest.raises(ValueError, match=r"case\.toml is not UTF-8"):
        from_toml(path)


def test_infinite_rates_are_refused_without_a_file():
    with pytest.raises(ValueError, match=r"training\.lr must be a number > 0, got inf"):
        TrainingSettings(lr=float("inf"))
    with pytest.raises(ValueError, match=r"training\.server_lr must be a number > 0, got nan"):
        TrainingSettings(server_lr=float("nan"))


def test_half_a_spell_is_refused():
    with pytest.raises(ValueError, match=r"spell must be a whole number from 1 to .*, got 2\.5"):
        NetworkSettings(spell=2.5)  # type: ignore[arg-type]


def test_every_setting_has_an_option_of_its_own() -> None:
    complete = Experiment(network=NetworkSettings(), round=RoundSettings()).as_dict()
    keys = [(name, key) for name in complete if name != "schedulers" for key in complete[name]]
    assert sorted(keys) == sorted((each.section, each.key) for each in SETTINGS.values())


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"rounds": 3}, "unknown setting 'rounds'; it belongs in [training], as rounds"),
        ({"data_folder": "x"}, "unknown setting 'data_folder'; it belongs in [data], as folder"),
        ({"run": {"lr": 1}}, "unknown setting 'lr' in [run]; it belongs in [training], as lr"),
        ({"run": {"seedz": 1}}, "unknown setting 'seedz' in [run]; did you mean seeds?"),
        ({"trainin": {}}, "unknown setting 'trainin'; did you mean training?"),
        ({"network": {"spel": 1}}, "unknown setting 'spel' in [network]; did you mean spell?"),
        (
            {"partition": {"clinets": 3}},
            "'clinets' is no setting of by-class; did you mean clients?",
        ),
        ({"data": "digits"}, "data must be a table of settings, [data], got 'digits'"),
        ({"network": 3}, "network must be a table of settings, [network], got 3"),
        ({"run": {"seeds": None}}, "run.seeds must be a whole number from 1 to 1000000, got None"),
        (
            {"model": {"name": "mlp:4,0"}},
            "hidden layer must be a whole number from 1 to 1000000, got 0",
        ),
        (
            {"run": {"dtype": "float46"}},
            "run.dtype must be one of float32, float64, got 'float46'; did you mean float64?",
        ),
    ],
)
def test_errors_name_section_value_and_rule(values: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)) as caught:
        from_dict(values)
    assert "pydantic" not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert type(caught.value) is ValueError


def test_a_section_of_python_objects_is_checked_alike() -> None:
    with pytest.raises(ValueError, match=r"^run\.seeds must be a whole number from 1 to"):
        RunSettings(seeds=0)
    with pytest.raises(ValueError, match=r"^unknown setting 'seedz' in \[run\]; did you mean"):
        RunSettings(seedz=1)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match=r"^training\.m must be at most 10 "):
        Experiment(partition=PartitionSettings(clients=10))


def test_every_setting_survives_json() -> None:
    changed = Experiment.of(
        data="digits",
        partition="dirichlet",
        partition_settings={"alpha": 0.1},
        model="mlp:8,4",
        lr=1,
        network={"deadline": 30},
        over_select=1.3,
        seeds=2,
        schedulers=["ADCS"],
    )
    again = from_dict(json.loads(json.dumps(changed.as_dict())))
    assert again == changed
    assert again.difference(changed) == ""
    assert changed.difference(Experiment()) == "data.name fashion-mnist, not digits"
    for name, section in changed.as_dict().items():
        if name not in ("schedulers", "partition"):
            assert set(section) == {s.key for s in SETTINGS.values() if s.section == name}


@pytest.mark.parametrize("spec", ["FedCBS", "FLIPS", "ADCS(kernel='labels')"])
def test_schedulers_by_labels_are_refused_for_a_regression(spec: str) -> None:
    with pytest.raises(ValueError, match="needs how many examples of each label"):
        Experiment.of(data="own.npz", task="regression", schedulers=["Uniform", spec])
