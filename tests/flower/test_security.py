"""The snippet of docs/howto/flower_security.md runs, and its table has the snippet's numbers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "flower_security.md"


def test_the_table_has_the_numbers_of_the_snippet() -> None:
    text = PAGE.read_text()
    (snippet,) = re.findall(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    namespace: dict[str, Any] = {}
    exec(compile(snippet, str(PAGE), "exec", dont_inherit=True), namespace)
    rows = re.findall(r"^\| (.*`theta=.*) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", text, re.M)
    assert len(rows) == 7
    for what, *shown in rows:
        settings: dict[str, Any] = {}
        for name, value in re.findall(r"`(theta|scale|caps)=([^`]+)`", what.replace(" with ", "")):
            settings[name] = value.strip('"') if name == "scale" else float(value)
        if "caps" in settings:
            settings |= {"caps": int(settings["caps"]), "groups": namespace["groups"]}
        found = [namespace["slots"](attack, **settings) for attack in namespace["attacks"]]
        assert found == [int(count) for count in shown], what
