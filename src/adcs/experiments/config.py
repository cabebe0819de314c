"""The settings of an experiment, each declared once.

A setting is a field of its section: `[data]`, `[partition]`, `[model]`, `[training]`, `[round]`,
`[network]` or `[run]`. From the field follow the key in TOML files and in config.json, the
command-line option with its help and default, the check of the value and the words in a summary.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_type_hints

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic.fields import FieldInfo

from adcs._validation import check_choice, did_you_mean, did_you_mean_path
from adcs.experiments.models import DENSE, NETWORKS, check_model, make_model
from adcs.experiments.specs import AGGREGATION, LOCAL_TRAINING, make_scheduler
from adcs.experiments.validation import check_value, in_words
from adcs.metrics import CLIENT_METRICS, default_metric
from adcs.reports.sketch import SKETCH_ABOVE
from adcs.simulation.datasets import Dataset, load, natural_clients
from adcs.simulation.engine import Simulation
from adcs.simulation.federation import Federation, check_metric
from adcs.simulation.models import Model
from adcs.simulation.network import Network, NetworkSettings
from adcs.simulation.partition import KINDS, Partition, check_settings, make_partition
from adcs.simulation.round_settings import RoundSettings
from adcs.simulation.settings import BOUNDS, MILLION, check_setting, declare, setting
from adcs.simulation.training import Training, is_spec

TASKS = ("classification", "regression")

MODEL_IN_WORDS = {"classification": "softmax regression", "regression": "linear regression"}
"""What the model softmax is in a summary, by task."""

PAPER_SCHEDULERS = {
    "Uniform": "Uniform",
    "PowerOfChoice": "PowerOfChoice",
    "OCS": "OCS",
    "DivFL": "DivFL",
    "StaticDPP": "StaticDPP",
    "ADCS": "ADCS",
}


class Section(BaseModel):
    """Settings that belong together. Wrong values raise ValueError with one sentence.

    >>> RunSettings(seeds=0)
    Traceback (most recent call last):
    ...
    ValueError: run.seeds must be a whole number from 1 to 1000000, got 0
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    def __init__(self, /, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ValueError(_sentence(error, type(self), values)) from None


def _field(default: Any, help: str, **more: Any) -> Any:
    """Return the field of a setting; `more` is that of `declare`."""
    return Field(default, **declare(help, **more))


class DataSettings(Section):
    """The data set: `[data]`."""

    name: str = _field(
        "fashion-mnist",
        "Data set (adcs data list), a file with x_train, y_train, x_test, y_test, or a folder with "
        "a file for each client.",
        option="data",
        metavar="NAME|FILE.npz|FOLDER",
        summary="data {}",
    )
    folder: str | None = _field(
        None, "Folder with the files of a named data set.", option="data_folder", summary=""
    )
    task: Literal["classification", "regression"] = _field(
        "classification", "What the labels of one's own data are.", strict=None
    )
    label: str = _field("label", "Column of the labels in .csv and .parquet files.")
    test_fraction: float = _field(
        0.2, "Part of a client's examples for testing, where files do not say.", gt=0, lt=1
    )
    histogram_epsilon: float | None = _field(
        None,
        "Epsilon of the noise that clients add to their label histograms; none by default.",
        gt=0,
    )


class PartitionSettings(Section):
    """How the data is divided among the clients: `[partition]`.

    Settings of the kind of partition itself, such as `alpha`, stand beside `kind`.

    >>> PartitionSettings(kind="dirichlet", alpha=0.1).settings
    {'alpha': 0.1}
    """

    model_config = ConfigDict(extra="allow")

    kind: str = _field(
        "by-class",
        f"Kind of partition: {', '.join(KINDS)}. Data with clients of its own is natural.",
        option="partition",
        summary="partition {}",
    )
    clients: int = _field(
        30, "Number of clients, N; all of natural ones.", ge=1, le=MILLION, summary="N = {} clients"
    )

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of this kind of partition."""
        return dict(self.model_extra or {})

    @model_validator(mode="after")
    def _check(self) -> PartitionSettings:
        for name, hint in check_settings(self.kind, self.settings).items():
            if name in self.settings:
                check_value(f"{self.kind} {name}", self.settings[name], hint)
        return self


class ModelSettings(Section):
    """The model: `[model]`."""

    name: str = _field(
        "softmax",
        f"Model: {', '.join((*DENSE, *NETWORKS))} (mlp:64,32 has two hidden layers); one's own as "
        "file.py:Net.",
        option="model",
        metavar="NAME|FILE.py:NET",
        summary="model {}",
        is_spec=True,
    )
    buffers: Literal["average", "keep"] = _field(
        "average", "Statistics of BatchNorm: averaged, or kept as they were made.", strict=None
    )
    device: Literal["cpu", "cuda"] = _field(
        "cpu", "Device of networks; cuda is untested.", strict=None
    )
    compile: bool = _field(False, "Compile the network; pays in long runs of large CNNs.")

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        check_model(name)
        return name


@dataclass(frozen=True)
class TrainingSettings(Training):
    """Local training and aggregation: `[training]`."""

    rounds: int = setting(
        20000, "Number of rounds, T.", ge=1, le=1000 * MILLION, summary="T = {:,} rounds"
    )
    batch_size: int = setting(16, "Examples in a mini-batch.", ge=1, le=MILLION, summary="batch {}")


class RunSettings(Section):
    """Seeds, evaluations and number format: `[run]`."""

    seeds: int = _field(
        1,
        "Number of seeds; three and more give intervals.",
        ge=1,
        le=MILLION,
        summary=lambda seeds: f"{seeds} seed{'s' if seeds > 1 else ''}",
    )
    first_seed: int = _field(0, "First of the seeds.", ge=0, le=10**15)
    baseline: str | None = _field(
        None,
        "Differences are taken to this scheduler; by default to Uniform, else to the first.",
        metavar="LABEL",
        summary="",
    )
    metric: str | None = _field(
        None,
        f"What clients are judged by: {', '.join(CLIENT_METRICS)}. By default accuracy, and rmse "
        "for regression.",
        metavar="METRIC",
        summary=lambda metric: "" if metric in (None, "accuracy") else f"metric {metric}",
    )
    eval_every: int = _field(100, "Rounds between evaluations.", ge=1, le=1000 * MILLION)
    dtype: Literal["float32", "float64"] = _field("float32", "Floating-point format.", strict=None)
    # Part of the config because a GEMM rounds differently in another width.
    pass_width: int = _field(3, "Schedulers that share a pass over the data.", ge=1, le=MILLION)

    sketch_above: int = _field(
        SKETCH_ABOVE,
        "Updates of more numbers than this are sketched for schedulers without a sketch of their "
        "own; 0 never.",
        ge=0,
        le=1000 * MILLION,
    )

    @field_validator("metric")
    @classmethod
    def _check_metric(cls, metric: str | None) -> str | None:
        return None if metric is None else check_choice("run.metric", metric, CLIENT_METRICS)


def _given(section: Any) -> dict[str, Any] | None:
    """Return the settings of a section that the user gave; None where that cannot be known.

    >>> _given(PartitionSettings(clients=3)), _given({"m": 2}), _given(TrainingSettings(m=2))
    ({'clients': 3}, {'m': 2}, None)
    """
    if section is None:
        return {}
    if isinstance(section, BaseModel):
        return section.model_dump(exclude_unset=True)
    return dict(section) if isinstance(section, Mapping) else None


MOST_OF_FEW = 0.6
"""Of few natural clients, this part trains in a round by default, as in the paper."""


class Experiment(Section):
    """Everything that determines the results of a comparison; the defaults are the paper's.

    Some defaults follow from the data. Data with clients of its own is divided among all of them
    (`natural`), and of fewer than 30 clients three fifths train in a round. A regression without
    clients of its own is divided `iid`, and judged by `rmse`.

    Examples
    --------
    >>> experiment = Experiment(run=RunSettings(seeds=5))
    >>> experiment.training.lr, experiment.partition.clients, experiment.seed_list
    (0.001, 30, range(0, 5))
    >>> Experiment.of(data="digits", lr=0.1) == Experiment().replace(data="digits", lr=0.1)
    True
    """

    data: DataSettings = Field(default=DataSettings(), title="Data")
    partition: PartitionSettings = Field(default=PartitionSettings(), title="Clients")
    model: ModelSettings = Field(default=ModelSettings(), title="Model")
    training: TrainingSettings = Field(default=TrainingSettings(), title="Training")
    round: RoundSettings | None = Field(default=None, title="Rounds")
    network: NetworkSettings | None = Field(default=None, title="Network")
    run: RunSettings = Field(default=RunSettings(), title="Run")
    schedulers: Mapping[str, str] = Field(default=PAPER_SCHEDULERS, title="Schedulers")

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, values: Any) -> Any:
        """Fill in the defaults that follow from the data."""
        data = _given(values.get("data"))
        run = _given(values.get("run"))
        partition = _given(values.get("partition"))
        if data is None or run is None or partition is None:
            return values  # Wrong values: their checks say so.
        task = data.get("task", "classification")
        if run.get("metric") is None and task in TASKS:
            run["metric"] = default_metric(task)
        training = _given(values.get("training"))
        known = "kind" in partition and "clients" in partition
        if known and (training is None or "m" in training):
            return {**values, "run": run}
        name = data.get("name", DataSettings().name)
        found = natural_clients(name) if isinstance(name, str) else None
        of_classes = "iid" if task == "regression" else "by-class"
        kind = partition.setdefault("kind", "natural" if found else of_classes)
        if found and kind == "natural":
            clients = partition.setdefault("clients", found)
            most = TrainingSettings().m
            if training is not None and isinstance(clients, int) and clients * MOST_OF_FEW < most:
                training.setdefault("m", max(1, round(clients * MOST_OF_FEW)))
                values = {**values, "training": training}
        return {**values, "run": run, "partition": partition}

    @field_validator("schedulers", mode="before")
    @classmethod
    def _label(cls, given: Any) -> Any:
        """Return the schedulers by label; in a list each is its own label."""
        check_value("schedulers", given, list[str] | Mapping[str, str])
        if not given:
            raise ValueError("schedulers must name at least one, got none")
        if isinstance(given, Mapping):
            return dict(given)
        if len(set(given)) < len(given):
            raise ValueError(f"schedulers must be distinct, got {list(given)!r}")
        return {spec: spec for spec in given}

    @model_validator(mode="after")
    def _check(self) -> Experiment:
        clients, m = self.partition.clients, self.training.m
        if m > clients:
            raise ValueError(f"training.m must be at most {clients} (all clients), got {m}")
        if CLIENT_METRICS[self.metric].task != self.data.task:
            raise ValueError(
                f"run.metric {self.metric} is for {CLIENT_METRICS[self.metric].task}, and data.task"
                f" is {self.data.task}"
            )
        mode = self.round and self.round.buffered(m)
        if mode and mode.concurrency > clients:
            raise ValueError(
                f"round.concurrency must be at most {clients} (all clients), got {mode.concurrency}"
            )
        for label, spec in self.schedulers.items():
            scheduler = make_scheduler(spec, seed=0)
            if self.data.task == "regression" and "label_counts" in scheduler.needed_signals:
                raise ValueError(
                    f"scheduler {label} needs how many examples of each label a client has, and a "
                    "regression has no labels to count: leave it out"
                )
        self._own_objects()
        baseline = self.run.baseline
        if baseline is not None:
            check_choice("run.baseline", baseline, self.schedulers)
        return self

    @classmethod
    def of(cls, **options: Any) -> Experiment:
        """Return the experiment of settings that are named as on the command line.

        >>> Experiment.of(partition="dirichlet", partition_settings={"alpha": 0.1}).partition
        PartitionSettings(kind='dirichlet', clients=30, alpha=0.1)
        >>> Experiment.of(rouns=10)
        Traceback (most recent call last):
        ...
        ValueError: unknown setting 'rouns'; did you mean rounds?
        """
        return from_dict(with_options({}, options))

    def replace(self, **options: Any) -> Experiment:
        """Return the experiment with some settings changed, named as on the command line.

        Other data keeps the partition, unless it is the default of the data before.

        >>> Experiment().replace(rounds=10).training.rounds
        10
        >>> Experiment.of(data="vowel").replace(data="digits").partition.kind
        'by-class'
        """
        held = self.as_dict()
        if "data" in options and self.partition == Experiment.of(**self._data_options()).partition:
            held["partition"] = {}
            if self.partition.kind == "natural":
                del held["training"]["m"]
        if "task" in options and "metric" not in options:
            held["run"]["metric"] = None
        return from_dict(with_options(held, options))

    def _data_options(self) -> dict[str, Any]:
        return {"data": self.data.name, "task": self.data.task}

    def as_dict(self) -> dict[str, Any]:
        """Return the settings as JSON values, by section."""
        return self.model_dump(mode="json", warnings=False)

    def difference(self, other: Experiment) -> str:
        """Return the first setting in which another experiment differs, "" if there is none.

        >>> Experiment().difference(Experiment.of(rounds=10))
        'training.rounds 10, not 20000'
        """
        own, others = _flat(self.as_dict()), _flat(other.as_dict())
        for name in [*own, *others]:
            if own.get(name) != others.get(name):
                return f"{name} {others.get(name)}, not {own.get(name)}"
        return ""

    @property
    def metric(self) -> str:
        """The metric by which clients are judged."""
        return self.run.metric or default_metric(self.data.task)

    @property
    def seed_list(self) -> range:
        """The seeds to run."""
        return range(self.run.first_seed, self.run.first_seed + self.run.seeds)

    def passes(self) -> list[tuple[str, ...]]:
        """Return the labels that share each pass over the data, dealt out in turn."""
        labels = list(self.schedulers)
        count = -(-len(labels) // self.run.pass_width)
        return [tuple(labels[i::count]) for i in range(count)]

    def dataset(self) -> Dataset:
        """Load the data."""
        return load(
            self.data.name,
            self.data.folder,
            task=self.data.task,
            label=self.data.label,
            test_fraction=self.data.test_fraction,
        )

    def divide(self, dataset: Dataset, seed: int) -> Partition:
        """Divide the data among the clients; ValueError also if the metric does not fit it."""
        check_metric(self.metric, dataset)
        kind, clients = self.partition.kind, self.partition.clients
        return make_partition(dataset, kind, clients, seed=seed, **self.partition.settings)

    def make_model(self, dataset: Dataset) -> Model:
        """Make the model for the data."""
        return make_model(
            self.model.name,
            dataset,
            device=self.model.device,
            buffers=self.model.buffers,
            compile=self.model.compile,
        )

    def simulation(
        self,
        seed: int,
        labels: tuple[str, ...] | None = None,
        dataset: Dataset | None = None,
    ) -> Simulation:
        """Return the simulation of one seed and of some of the schedulers."""
        dataset = dataset or self.dataset()
        federation = Federation(
            dataset,
            self.divide(dataset, seed),
            batch_size=self.training.batch_size,
            seed=seed,
            dtype=np.dtype(self.run.dtype),
            metric=self.metric,
            histogram_epsilon=self.data.histogram_epsilon,
        )
        network = None
        if self.network is not None:
            network = Network(self.network, self.partition.clients, seed)
        return Simulation(
            federation,
            self.make_model(dataset),
            {
                label: make_scheduler(self.schedulers[label], seed)
                for label in labels or tuple(self.schedulers)
            },
            self.training,
            network=network,
            seed=seed,
            round_settings=self.round,
            sketch_above=self.run.sketch_above,
            **self._own_objects(),
        )

    def _own_objects(self) -> dict[str, Any]:
        """Return the user's own local training and aggregation, where the settings name them."""
        local, aggregation = self.training.local, self.training.aggregation
        found = {}
        if is_spec(local):
            found["local_training"] = LOCAL_TRAINING.make(local)
        if is_spec(aggregation):
            found["aggregation"] = AGGREGATION.make(aggregation)
        return found

    def in_words(self) -> str:
        """Return the settings in words.

        >>> Experiment.of(data="digits", rounds=500, network={"dropout": 0.1}).in_words()
        'data digits; partition by-class, N = 30 clients; softmax regression; m = 18 per round,
        lr 0.001, 1 step(s) of SGD, T = 500 rounds, batch 16; network: dropout = 0.1; 1 seed'
        >>> Experiment.of(data="own.npz", task="regression").in_words().split("; ")[2]
        'linear regression'
        """
        parts = []
        for name, section in self:
            words = [
                each.in_words(getattr(section, each.key))
                for each in SETTINGS.values()
                if each.section == name
                and section is not None
                # Epochs take the place of steps.
                and not (each.option == "steps" and self.training.epochs is not None)
            ]
            if isinstance(section, ModelSettings) and section.name == "softmax":
                words[0] = MODEL_IN_WORDS[self.data.task]
            if isinstance(section, PartitionSettings):
                words += [f"{key} = {value}" for key, value in section.settings.items()]
            if isinstance(section, NetworkSettings):
                words = ["network: " + (", ".join(filter(None, words)) or "default settings")]
            parts.append(", ".join(filter(None, words)))
        return "; ".join(filter(None, parts))


def _flat(sections: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of sections by name.

    >>> _flat({"run": {"seeds": 1}, "network": None})
    {'run.seeds': 1, 'network': None}
    """
    found: dict[str, Any] = {}
    for section, table in sections.items():
        if isinstance(table, Mapping):
            found |= {f"{section}.{key}": value for key, value in table.items()}
        else:
            found[section] = table
    return found


class Setting(NamedTuple):
    """A setting as its field declares it.

    Attributes
    ----------
    section, key
        Its place in the config.
    title
        The title of the section.
    option
        Its name on the command line, with underscores; unique among all settings.
    hint, default, help, metavar, bounds
        Type, default, help text, what the help shows for a value, and bounds.
    summary
        Its words in a summary: a format, or a function of the value. None is "option = value"
        where the value is not the default.
    is_spec
        Whether the value may be the spec of a user's own object, `file.py:Class`.
    """

    section: str
    key: str
    title: str
    option: str
    hint: Any
    default: Any
    help: str
    metavar: str | None
    bounds: dict[str, Any]
    summary: str | Callable[[Any], str] | None
    is_spec: bool

    @property
    def name(self) -> str:
        """The name in error messages: that in a TOML file."""
        return f"{self.section}.{self.key}"

    def in_words(self, value: Any) -> str:
        """Return a value in words; "" for one that a summary leaves out."""
        if callable(self.summary):
            return self.summary(value)
        if self.summary is not None:
            return self.summary.format(value)
        shown = f"{value:g}" if isinstance(value, float) else value
        return "" if value == self.default else f"{self.option} = {shown}"


def _settings() -> Iterator[Setting]:
    for section, field in Experiment.model_fields.items():
        kind = _section_class(field.annotation)
        if kind is None:
            continue
        for key, info in _fields(kind).items():
            extra: Any = info.json_schema_extra or {}
            yield Setting(
                section,
                key,
                field.title or section,
                extra.get("option") or key,
                info.annotation,
                info.default,
                info.description or "",
                extra.get("metavar"),
                {
                    name: getattr(bound, name)
                    for bound in info.metadata
                    for name in BOUNDS
                    if hasattr(bound, name)
                },
                extra.get("summary"),
                bool(extra.get("is_spec")),
            )


def _section_class(hint: Any) -> Any:
    """Return the class of a section's settings, None for a hint that is no section."""
    kinds = get_args(hint) or (hint,)
    return next((k for k in kinds if hasattr(k, "model_fields") or is_dataclass(k)), None)


def _fields(section: Any) -> dict[str, FieldInfo]:
    """Return the fields of a section as pydantic reads them."""
    if not is_dataclass(section):
        return dict(section.model_fields)
    hints = get_type_hints(section)
    return {
        each.name: FieldInfo.from_annotated_attribute(hints[each.name], each)
        for each in fields(section)
    }


SETTINGS: Mapping[str, Setting] = {each.option: each for each in _settings()}
"""Every setting, by the name of its command-line option."""

TABLES = {"partition_settings": "partition", "network": "network"}
"""Options that set several settings of a section."""


def from_dict(values: Mapping[str, Any]) -> Experiment:
    """Return the experiment of settings by section, as in a TOML file or config.json.

    >>> from_dict({"training": {"lr": 0.1, "batch-size": 8}}).training.batch_size
    8
    >>> from_dict({"training": {"lrr": 0.1}})
    Traceback (most recent call last):
    ...
    ValueError: unknown setting 'lrr' in [training]; did you mean lr?
    >>> from_dict({"rounds": 10})
    Traceback (most recent call last):
    ...
    ValueError: unknown setting 'rounds'; it belongs in [training], as rounds
    """
    sections = with_underscores(values)
    training = sections.get("training")
    if isinstance(training, dict) and training.get("local") == "steps":
        training["local"] = "sgd"  # The name in configs of version 1.
    for section in ("round", "network"):
        if sections.get(section) == {}:
            del sections[section]
    return Experiment(**sections)


def with_options(values: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by section, with options as on the command line put over them.

    Options for single settings of the network and of the partition keep the other ones, but
    another kind of partition drops those of the kind before.

    >>> with_options({"training": {"m": 5, "lr": 0.1}}, {"lr": 0.2, "data": "digits"})
    {'training': {'m': 5, 'lr': 0.2}, 'data': {'name': 'digits'}}
    """
    merged = with_underscores(values)

    def put(section: str, table: Mapping[str, Any]) -> None:
        held = merged.get(section) or {}
        if not isinstance(held, Mapping):
            raise ValueError(_not_a_table(section, held))
        merged[section] = {**held, **table}

    if "partition" in options and isinstance(merged.get("partition"), Mapping):
        held = merged["partition"].items()
        merged["partition"] = {k: v for k, v in held if k in PartitionSettings.model_fields}
    for option, value in options.items():
        if option == "schedulers":
            merged[option] = value
        elif option in TABLES:
            check_value(option, value, Mapping[str, Any] | None)
            for key in value or {}:
                if option == "partition_settings" and key in PartitionSettings.model_fields:
                    raise ValueError(f"{key!r} is no setting of a kind of partition, got {value!r}")
            put(TABLES[option], value or {})
        elif option in SETTINGS:
            put(SETTINGS[option].section, {SETTINGS[option].key: value})
        else:
            known = [*SETTINGS, *TABLES, "schedulers"]
            raise ValueError(f"unknown setting {option!r}; {did_you_mean(option, known)}")
    return merged


def with_underscores(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by section with underscores for hyphens in their keys.

    >>> with_underscores({"run": {"eval-every": 10}})
    {'run': {'eval_every': 10}}
    """
    found: dict[str, Any] = {}
    for key, value in values.items():
        name = str(key).replace("-", "_")
        if name in found:
            raise ValueError(f"{name} is set twice, with hyphens and with underscores; keep one")
        is_section = name != "schedulers" and isinstance(value, Mapping)
        found[name] = with_underscores(value) if is_section else value
    return found


def from_toml(path: str | Path) -> dict[str, Any]:
    """Return the values in a TOML file."""
    try:
        with Path(path).open("rb") as file:
            return tomllib.load(file)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path} is not valid TOML: {error}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text, as TOML is: {error}") from error
    except OSError as error:
        near = did_you_mean_path(Path(path)) if isinstance(error, FileNotFoundError) else ""
        raise ValueError(f"{path} cannot be read: {error.strerror}{near}") from error
    except RecursionError as error:
        raise ValueError(f"{path} is nested too deep to be settings") from error


def _sentence(error: ValidationError, kind: type[Section], values: Mapping[str, Any]) -> str:
    """Return the first error of a section's or an experiment's values in one sentence."""
    section = next(
        (name for name, field in Experiment.model_fields.items() if field.annotation is kind), None
    )
    found = error.errors(include_url=False)
    unknown = ("extra_forbidden", "unexpected_keyword_argument")
    first = next((each for each in found if each["type"] in unknown), found[0])
    if first["type"] == "value_error":  # Raised by checks of our own.
        return str(first["ctx"]["error"])
    path = [*([section] if section else []), *map(str, first["loc"])]
    if first["type"] in unknown:
        return _unknown(path)
    if len(path) == 1:
        return _not_a_table(path[0], first["input"])
    declared = next(each for each in SETTINGS.values() if [each.section, each.key] == path[:2])
    value = values[path[0]] if section is None else values
    value = value[declared.key]
    try:
        check_setting(declared.name, value, declared.hint, declared.bounds)
    except ValueError as ours:
        return str(ours)
    return f"{declared.name} must be {in_words(declared.hint)}, got {value!r}"


def _not_a_table(section: str, value: Any) -> str:
    return f"{section} must be a table of settings, [{section}], got {value!r}"


def _unknown(path: list[str]) -> str:
    """Return what to say about a key that is no setting where it stands."""
    *section, key = path
    place = f" in [{section[0]}]" if section else ""
    if key in SETTINGS:
        belongs = SETTINGS[key]
        hint = f"it belongs in [{belongs.section}], as {belongs.key}"
    elif section:
        hint = did_you_mean(key, [s.key for s in SETTINGS.values() if s.section == section[0]])
    else:
        hint = did_you_mean(key, [*Experiment.model_fields, *SETTINGS])
    return f"unknown setting {key!r}{place}; {hint}"
