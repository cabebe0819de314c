"""Specs of objects: files of a user's own, settings, errors."""

from __future__ import annotations

import re
import sys
from fractions import Fraction

import pytest

from adcs.cli.options import schedulers
from adcs.experiments.specs import SpecKind, absolute, make_scheduler


def test_own_file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "import adcs\n"
        "class First(adcs.Scheduler):\n"
        "    def __init__(self, *, skip=0, **common):\n"
        "        super().__init__(**common)\n"
        "        self.skip = skip\n"
        "    def _select(self, server_round, clients, m):\n"
        "        return adcs.Cohort.of(self.take(clients[self.skip:], m))\n"
    )
    scheduler = make_scheduler(f"{path}:First(skip=2)", seed=4)
    assert scheduler.seed == 4
    assert scheduler.select(0, range(9), 3).clients == (2, 3, 4)


def test_settings_may_be_tables():
    made = make_scheduler("Uniform(groups={0: 'a:b', 1: 'a:b'}, caps={'a:b': 1})", seed=0)
    assert made.constraints.groups == {0: "a:b", 1: "a:b"}
    assert schedulers(["site=ADCS(groups={0: 'a'}, caps=1)"])["site"].startswith("ADCS(")


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ("nowhere.py:Thing", "there is no file nowhere.py"),
        ("json:JSONDecoder", "not a subclass"),
        ("ADCS(0.5)", "must look like"),
        ("ADCS(theta=open('x'))", "must look like"),
        ("Foo", "unknown scheduler 'Foo'; there are ADCS, ActiveFL"),
        ("patient.py", "file.py:Class"),
        ("ADCS(thet=0.1)", "ADCS has no setting 'thet'; did you mean theta?"),
        (
            "PowerOfChoice(d=3)",
            "PowerOfChoice has no setting 'd'; there are candidates, seed, ",
        ),
        (
            "LiveADCS(d=3)",
            "there are theta, patience, max_share, refresh_every, probe_share, sketch, kernel",
        ),
        ("ADCS(theta='a')", "theta must be a finite number, got 'a'"),
        ("Uniform(by_size='no')", "by_size must be true or false, got 'no'"),
        ("ADCS(caps=1.5)", "caps must be a whole number or a table of whole numbers, got 1.5"),
    ],
)
def test_wrong_specs(spec, named):
    with pytest.raises(ValueError, match=re.escape(named)):
        make_scheduler(spec, seed=0)


def test_a_file_without_its_class_is_answered_with_its_classes(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("import adcs\nfrom adcs import Uniform\nclass Mine(adcs.ADCS):\n    pass\n")
    with pytest.raises(ValueError, match=rf"name its class: {path}:Mine$"):
        make_scheduler(str(path), seed=0)
    path.write_text("from adcs import Uniform\n")
    with pytest.raises(ValueError, match=r"mine\.py has no subclass of adcs\.Scheduler$"):
        make_scheduler(str(path), seed=0)


def test_a_class_without_common_settings_is_told_to_take_them(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "import adcs\n"
        "class Mine(adcs.ADCS):\n"
        "    def __init__(self, *, patience=3):\n"
        "        super().__init__()\n"
    )
    said = "unexpected keyword argument 'seed'; take **common and pass it to super().__init__"
    with pytest.raises(ValueError, match=re.escape(said)):
        make_scheduler(f"{path}:Mine(patience=2)", seed=0)


def test_a_class_of_ones_own_decides_what_it_takes(tmp_path):
    path = tmp_path / "loose.py"
    path.write_text(
        "from __future__ import annotations\n"
        "import adcs\n"
        "class Loose(adcs.ADCS):\n"
        "    def __init__(self, *, pair: tuple[int, str] = (), odd: Unseen = 0, **more):\n"
        "        self.hidden = more.pop('hidden', None)\n"
        "        super().__init__(**more)\n"
    )
    made = make_scheduler(f"{path}:Loose(hidden='x', theta=0.5, odd='y', pair=(1, 'a'))", seed=0)
    assert (made.hidden, made.theta) == ("x", 0.5)
    with pytest.raises(ValueError, match="Loose has no setting 'teta'; did you mean theta"):
        make_scheduler(f"{path}:Loose(teta=0.5)", seed=0)


NUMBER = SpecKind("number", "Fraction or file.py:make", {"Fraction": Fraction})


def test_other_kinds_of_objects(tmp_path):
    path = tmp_path / "numbers_of_mine.py"
    path.write_text(
        "def thirds(*, of: int = 1):\n    return of / 3\nclass Ten(int):\n    pass\nHALF = 0.5\n"
    )
    assert NUMBER.make("Fraction(numerator=3)") == 3
    assert NUMBER.make("Fraction", numerator=2) == 2
    assert NUMBER.make(f"{path}:thirds(of=6)") == 2.0
    assert absolute(f"{path}:thirds(of=6)") == f"{path.resolve()}:thirds(of=6)"
    for spec, sentence in {
        "Fractoin": "unknown number 'Fractoin'; did you mean Fraction?",
        "Fraction(1)": "number 'Fraction(1)' must look like Fraction or file.py:make",
        f"{path}:third": "has no 'third'; did you mean thirds?",
        f"{path}:HALF": "HALF is not a class or function; there are thirds, Ten",
        f"{path}:thirds(off=6)": "thirds has no setting 'off'; did you mean of?",
        f"{path}:thirds(of='a')": "of must be a whole number, got 'a'",
        "nowhere.py:make": "number 'nowhere.py:make': there is no file nowhere.py",
    }.items():
        with pytest.raises(ValueError, match=re.escape(sentence)):
            NUMBER.make(spec)


@pytest.mark.parametrize("name", ["json", "adcs", "__main__", "adcs.own"])
def test_a_file_with_the_name_of_a_module_does_not_replace_it(tmp_path, name):
    """A file html.py made figures fail: their library imports the module of that name."""
    before = sys.modules.get(name)
    (tmp_path / f"{name}.py").write_text(
        "import adcs\n"
        "class Mine(adcs.Scheduler):\n"
        "    def _select(self, server_round, clients, m):\n"
        "        return adcs.Cohort.of(self.take(clients, m))\n"
    )
    scheduler = make_scheduler(f"{tmp_path / name}.py:Mine", seed=1)
    assert scheduler.select(0, [1, 2, 3], 2).clients == (1, 2)
    assert sys.modules.get(name) is before
    assert type(scheduler).__module__.partition(".")[0] != "adcs"
    assert sys.modules[type(scheduler).__module__] is not before
