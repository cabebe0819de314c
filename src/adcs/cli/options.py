"""Command-line options of settings, generated from their declarations, and their texts."""

from __future__ import annotations

import ast
import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

import typer

from adcs._validation import brief, did_you_mean_path
from adcs.experiments.config import (
    PAPER_SCHEDULERS,
    SETTINGS,
    TABLES,
    Experiment,
    Setting,
    from_toml,
    with_options,
    with_underscores,
)
from adcs.experiments.specs import absolute as absolute_spec
from adcs.experiments.tracking import TRACKERS
from adcs.run_folder import RunFolder
from adcs.simulation.datasets import is_named, reads_folder


def takes_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command an option for each setting; its first argument is the settings given.

    Options, their help, defaults and panels follow from `adcs.experiments.config`.
    """

    @functools.wraps(command)
    def run(**values: Any) -> None:
        texts = {name: values.pop(name) for name in GENERATED}
        given = {
            GENERATED[name].setting: GENERATED[name].parse(text)
            for name, text in texts.items()
            if text is not None
        }
        command(given, **values)

    own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
    generated = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[each.kind | None, each.option],
        )
        for name, each in GENERATED.items()
    ]
    parameters = [*generated, *(p.replace(kind=p.KEYWORD_ONLY) for p in own)]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    return run


class GeneratedOption(NamedTuple):
    """A command-line option for a setting: the type typer reads, and the parser of its text."""

    setting: str
    kind: Any
    parse: Callable[[Any], Any]
    option: Any


def panel_option(
    *names: str, help: str, panel: str, default: Any = None, metavar: str | None = None, **more: Any
) -> Any:
    """Return an option in a panel of the help, with its default in words."""
    if isinstance(default, bool):
        default = "yes" if default else "no"
    help = help if default in (None, "", ()) else f"{help} Default: {default}."
    return typer.Option(
        *names, help=help, rich_help_panel=panel, show_default=False, metavar=metavar, **more
    )


def _of_setting(each: Setting) -> GeneratedOption:
    """Return the option of a setting."""
    types = get_args(each.hint) or (each.hint,)
    plain = next((kind for kind in (bool, int, float) if kind in types), str)
    parse: Callable[[Any], Any] = lambda value: value  # noqa: E731
    if each.option == "data":
        parse = absolute
    elif each.is_spec:
        parse = absolute_spec
    choices = f" One of {', '.join(types)}." if get_origin(each.hint) is Literal else ""
    return GeneratedOption(
        each.option,
        plain,
        parse,
        panel_option(
            _dashed(each.option),
            help=each.help + choices,
            panel=each.title,
            default=each.default,
            metavar=each.metavar,
        ),
    )


def _of_table(name: str, help: str) -> GeneratedOption:
    """Return the option that sets several settings of a section."""
    panel = Experiment.model_fields[TABLES[name]].title or name
    option = panel_option(_dashed(name), help=help, panel=panel, metavar="NAME=VALUE,..")
    return GeneratedOption(name, str, functools.partial(pairs, option=_dashed(name)), option)


def _dashed(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def pairs(text: str, option: str) -> dict[str, Any]:
    """Parse a text such as "availability=0.8,deadline=30".

    >>> pairs("alpha=0.1, sizes=skewed", "--partition-settings")
    {'alpha': 0.1, 'sizes': 'skewed'}
    """
    found: dict[str, Any] = {}
    for part in text.split(","):
        key, equals, value = part.partition("=")
        if not equals or not key.strip() or not value.strip():
            raise ValueError(f"{option} must look like name=value,name=value; got {brief(text)}")
        found[key.strip().replace("-", "_")] = literal(value.strip())
    return found


def literal(text: str) -> Any:
    """Return the value of a setting's text: a Python literal, true or false, or the text itself.

    >>> literal("0.5"), literal("true"), literal("by-class")
    (0.5, True, 'by-class')
    """
    try:
        return ast.literal_eval({"true": "True", "false": "False"}.get(text, text))
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return text


def schedulers(specs: Sequence[str]) -> dict[str, str]:
    """Return specs by label; a spec without a label is its own label.

    >>> schedulers(["Uniform", "greedy=ADCS(theta=0.5)", "ADCS(theta=0.2)"])
    {'Uniform': 'Uniform', 'greedy': 'ADCS(theta=0.5)', 'ADCS(theta=0.2)': 'ADCS(theta=0.2)'}
    """
    found: dict[str, str] = {}
    for text in specs:
        match = re.fullmatch(r"\s*([^=()]+?)\s*=\s*(.+)", text, flags=re.DOTALL)
        label, spec = match.groups() if match else (text.strip(), text.strip())
        if label in found:
            raise ValueError(f"schedulers must have distinct labels, got {label!r} twice")
        found[label] = absolute_spec(spec)
    return found


def absolute(data: str) -> str:
    """Return the name of a data set, or the absolute path of one's own, for a resume from anywhere.

    >>> absolute("digits"), Path(absolute("mine.npz")).is_absolute()
    ('digits', True)
    """
    is_path = not is_named(data) and (Path(data).suffix == ".npz" or Path(data).exists())
    return str(Path(data).resolve()) if is_path else data


def open_run(path: Path) -> RunFolder:
    """Open a run folder; the error for a missing one suggests a similar name.

    >>> open_run(Path("runs/none"))
    Traceback (most recent call last):
    ...
    FileNotFoundError: runs/none is not a run folder: there is no such folder
    """
    if not path.exists():
        raise FileNotFoundError(
            f"{path} is not a run folder: there is no such folder{did_you_mean_path(path)}"
        )
    if (path / "sweep.json").is_file():
        raise ValueError(f"{path} is a sweep; name one of its runs, such as {path / 'run-1'}")
    return RunFolder.open(path)


def check_folder(data: str, folder: str | Path | None, option: str = "--data-folder") -> None:
    """Raise ValueError if a data folder is given for data that is not read from files.

    >>> check_folder("fashion-mnist", "images")
    >>> check_folder("digits", "images")
    Traceback (most recent call last):
    ...
    ValueError: --data-folder is where files of a named data set are; digits is not looked for there
    """
    if folder is not None and not reads_folder(data):
        raise ValueError(
            f"{option} is where files of a named data set are; {data} is not looked for there"
        )


def merged(config: Path | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a TOML file, by section, with options put over them.

    >>> merged(None, {"rounds": 10})
    {'training': {'rounds': 10}}
    """
    if config is None:
        return with_options({}, given)
    values = with_underscores(from_toml(config))
    data = values.get("data")
    if isinstance(data, dict) and isinstance(data.get("name"), str):
        data["name"] = _beside(config, data["name"])
    network = values.get("network")
    if isinstance(network, dict) and isinstance(network.get("trace"), str):
        path = config.parent / network["trace"]
        network["trace"] = str(path.resolve()) if path.exists() else network["trace"]
    return with_options(values, given)


def _beside(config: Path, data: str) -> str:
    """Return the path of a data file, looked up beside the config first."""
    path = config.parent / data
    return str(path.resolve()) if not is_named(data) and path.exists() else absolute(data)


GENERATED: Mapping[str, GeneratedOption] = {
    "scheduler": GeneratedOption(
        "schedulers",
        list[str],
        schedulers,
        panel_option(
            "--scheduler",
            "-s",
            metavar="[LABEL=]SPEC",
            help="Scheduler (adcs schedulers) such as ADCS, 'ADCS(theta=0.5)' or file.py:Class; "
            "repeat for more.",
            panel="Schedulers",
            default=", ".join(PAPER_SCHEDULERS),
        ),
    ),
    **{name: _of_setting(each) for name, each in SETTINGS.items() if each.section != "network"},
    "partition_settings": _of_table("partition_settings", "Its settings, such as alpha=0.1."),
    "network": _of_table(
        "network", "Settings of the virtual network, such as availability=0.8,deadline=30."
    ),
}
"""Options that follow from the settings, by the name of the parameter."""


Exact = Annotated[
    bool,
    panel_option(
        "--exact",
        help="Run each scheduler or point alone: its bits then do not depend on the others.",
        panel="Run",
    ),
]

Config = Annotated[
    Path | None,
    panel_option(
        "--config",
        metavar="FILE.toml",
        help="File of settings; options take precedence.",
        panel="Run",
    ),
]

Resume = Annotated[
    Path | None,
    panel_option("--resume", metavar="DIR", help="Resume an unfinished run.", panel="Run"),
]

Jobs = Annotated[
    int | None,
    panel_option(
        "--jobs", "-j", min=1, help="Number of processes. Default: one per core.", panel="Run"
    ),
]

Cluster = Annotated[
    str | None,
    panel_option(
        "--cluster",
        metavar="HOST:PORT|auto",
        help="Run on a Ray cluster; auto is that of this machine.",
        panel="Run",
    ),
]

Part = Annotated[
    str | None,
    panel_option(
        "--part",
        metavar="I/N",
        help="Run part I of N, for a batch queue; adcs merge merges the parts.",
        panel="Run",
    ),
]
"""Options that `compare` and `sweep` share."""

Track = Annotated[
    list[str] | None,
    panel_option(
        "--track",
        metavar="|".join(TRACKERS),
        help="Log to a tracker; repeat for more.",
        panel="Run",
    ),
]
