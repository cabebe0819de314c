"""What MkDocs does beside rendering pages: the generated reference, and links into the repository.

The reference has a page for each public package, which mkdocstrings fills from docstrings, and one
for the command line. Pages link to files of the repository, such as examples, by relative paths;
the site has a copy of each such file.
"""

from __future__ import annotations

import ast
import logging
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"

NOT_PUBLIC = {"adcs.cli", "adcs.__main__"}
"""As in tests/test_public_names.py: the surface of the command line is its options."""

OWN_HEADING = "    options:\n      show_root_heading: true\n      show_root_toc_entry: true\n"

LINK = re.compile(r"\]\(([^)\s#]+)(#[^)\s]*)?\)")


def public_modules() -> list[str]:
    """Return adcs, its public packages, and its public modules at the top level."""
    found = ["adcs"]
    for path in sorted((SOURCE / "adcs").rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        package = parts[-1] == "__init__"
        parts = parts[:-1] if package else parts
        public = not any(part.startswith("_") for part in parts)
        if public and len(parts) > 1 and (package or len(parts) == 2):
            found.append(".".join(parts))
    return [name for name in sorted(found) if name not in NOT_PUBLIC]


def exports(module: str) -> list[str]:
    """Return the names of a module's `__all__`."""
    path = SOURCE / module.replace(".", "/")
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    for statement in ast.parse(file.read_text()).body:
        targets = getattr(statement, "targets", [getattr(statement, "target", None)])
        if any(isinstance(each, ast.Name) and each.id == "__all__" for each in targets):
            value = statement.value  # type: ignore[attr-defined]
            return [name for name in ast.literal_eval(value) if not name.startswith("_")]
    return []


def reference_page(module: str) -> str:
    """Return the text of a module's page."""
    parts = [f"# {module}", f"::: {module}"]
    for name in exports(module):
        # A function that has the name of its module, which hides it from mkdocstrings.
        if (SOURCE / module.replace(".", "/") / f"{name}.py").is_file():
            parts.append(f"::: {module}.{name}.{name}\n{OWN_HEADING}")
    return "\n\n".join(parts) + "\n"


def on_post_build(config: MkDocsConfig) -> None:
    """Warn of public names that the reference lacks."""
    for module in public_modules():
        page = (Path(config.site_dir) / "reference" / f"{module}.html").read_text()
        for name in exports(module):
            if not re.search(rf'id="{re.escape(module)}\.({name}\.)?{name}"', page):
                logging.getLogger("mkdocs.hooks").warning("%s.%s is not shown", module, name)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the generated pages to the section Reference."""
    (reference,) = (entry for entry in config.nav or [] if "Reference" in entry)
    pages = [{module: f"reference/{module}.md"} for module in public_modules()]
    reference["Reference"] += [{"Command line": "reference/cli.md"}, *pages]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages, and the files of the repository that pages link to."""
    for module in public_modules():
        text = reference_page(module)
        files.append(File.generated(config, f"reference/{module}.md", content=text))
    text = "\n\n".join(["# Command line", *command_sections()])
    files.append(File.generated(config, "reference/cli.md", content=text + "\n"))
    outside = {
        target
        for file in files
        if file.is_documentation_page()
        for target in links_outside(file.content_string, file.src_uri)
    }
    for target in sorted(outside):
        if (ROOT / target).is_file():
            source = str(ROOT / target)
            files.append(File.generated(config, copy_of(target), abs_src_path=source))
    return files


def copy_of(target: str) -> str:
    """Return where the site has a file of the repository; as text, which browsers show."""
    return f"repository/{target}.txt"


def links_outside(text: str, page: str) -> Iterator[str]:
    """Yield the paths outside docs/ that a page links to, from the root of the repository."""
    for target, _ in LINK.findall(text):
        if not re.match(r"\w+:", target):
            path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), target))
            if not path.startswith(("docs/", "../")):
                yield path


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links to files of the repository point to their copies."""
    where = posixpath.dirname(page.file.src_uri)

    def replaced(match: re.Match[str]) -> str:
        for path in links_outside(match[0], page.file.src_uri):
            return f"]({posixpath.relpath(copy_of(path), where or '.')})"
        return match[0]

    return LINK.sub(replaced, markdown)


def command_sections() -> Iterator[str]:
    """Yield a section for each command: its help and a table of its options."""
    import typer

    from adcs.cli.app import app

    yield from sections(typer.main.get_command(app), "adcs")


def sections(command: Any, name: str) -> Iterator[str]:
    """Yield the section of a command, or those of the commands of a group."""
    if hasattr(command, "commands"):
        for key, below in command.commands.items():
            yield from sections(below, f"{name} {key}")
        return
    yield f"## {name}\n\n{command.help or ''}"
    rows = [
        f"| {usage(parameter)} | {as_cell(getattr(parameter, 'help', None) or '')} |"
        for parameter in command.params
        if parameter.name != "help" and not getattr(parameter, "hidden", False)
    ]
    if rows:
        yield "\n".join(["| option or argument | meaning |", "|---|---|", *rows])


def usage(parameter: Any) -> str:
    """Return a parameter as it is typed, for a cell of a table."""
    metavar = (parameter.metavar or "").replace("|", "\\|")
    if parameter.param_type_name == "argument":
        return f"`{metavar or parameter.name.upper()}`"
    return ", ".join(f"`{f'{name} {metavar}'.strip()}`" for name in parameter.opts)


def as_cell(text: str) -> str:
    """Return a sentence as the cell of a table."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
