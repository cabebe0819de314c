"""The HTML document of the page: one file with its own script, style and data."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Mapping
from importlib import resources
from string import Template
from typing import Any

from adcs.experiments.page.reasons import LEFT_OUT, REASONS
from adcs.run_folder import plain

ESCAPES = {sign: f"\\u{ord(sign):04x}" for sign in "<>&\u2028\u2029"}
"""Signs that end a script element or a line of a script, as JSON may write them."""

TURNING = dict.fromkeys([*range(0x202A, 0x202F), *range(0x2066, 0x206A)], "\ufffd")
"""Signs that turn the direction of the text after them; in a name they would turn a sentence."""

SCRIPTS = ("charts.js", "live.js", "page.js")


def json_text(value: Any) -> str:
    """Return JSON that can stand in a script element.

    >>> json_text({"client": "</script><b>"})
    '{"client":"\\\\u003c/script\\\\u003e\\\\u003cb\\\\u003e"}'
    """
    text = json.dumps(plain(value), allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    for sign, escape in ESCAPES.items():
        text = text.replace(sign, escape)
    return text.translate(TURNING)


def with_reasons(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the page's data with the words of the reasons."""
    return {
        **data,
        "reasons": [{"word": reason.word, "text": reason.text} for reason in REASONS],
        "left_out": LEFT_OUT,
        "reason_words": list(dict.fromkeys(reason.word for reason in REASONS)),
    }


def document(data: Mapping[str, Any], title: str) -> str:
    """Return the page as HTML.

    Scripts and styles run by their hashes alone, and nothing is loaded from elsewhere; the live
    page may connect to the server that it comes from.

    Parameters
    ----------
    data
        What the page shows; with "live" it fetches that from its server.
    title
        The title of the document.

    Examples
    --------
    >>> page = document({"live": True}, "<run>")
    >>> "<title>&lt;run&gt;</title>" in page, "http" in page.partition("<style>")[0].partition(
    ...     "http-equiv")[2]
    (True, False)
    """
    style, parts = _text("page.css"), "\n".join(_text(name) for name in SCRIPTS)
    script = f'(() => {{\n"use strict";\n{parts}}})();\n'
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    if data.get("live"):
        policy += "; connect-src 'self'"
    return Template(_text("page.html")).substitute(
        policy=policy,
        title=html.escape(title.translate(TURNING)),
        style=style,
        data=json_text(data),
        script=script,
    )


def _text(name: str) -> str:
    return resources.files("adcs.experiments.page").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"sha256-{digest}"
