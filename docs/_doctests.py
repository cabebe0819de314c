"""Shows doctests as code in the reference, also those outside a section "Examples"."""

from __future__ import annotations

import re
from typing import Any

import griffe

DOCTEST = re.compile(r"(?:(?<=\n\n)|^) *>>> .*?(?=\n\n|\Z)", flags=re.DOTALL)
EXAMPLES = re.compile(r"^( *)Examples\n\1-{3,}$", flags=re.MULTILINE)


class Doctests(griffe.Extension):
    """Puts each doctest outside a section "Examples" into a code block."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of a class, function, module or constant."""
        if obj.docstring is not None:
            obj.docstring.value = with_code_blocks(obj.docstring.value)


def with_code_blocks(text: str) -> str:
    """Return a docstring with code blocks; a section "Examples", which is last, is left alone."""
    section = EXAMPLES.search(text)
    end = len(text) if section is None else section.start()
    return DOCTEST.sub(lambda found: f"```pycon\n{found[0]}\n```", text[:end]) + text[end:]
