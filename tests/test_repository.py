"""The files around the code agree with each other: links, lock file, oldest versions, changelog."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob(".github/**/*.md")])


def requirements(*extras: str) -> list[Requirement]:
    lines = list(PROJECT["dependencies"])
    for extra in extras:
        lines += EXTRAS[extra]
    return [Requirement(line) for line in lines]


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(path: str) -> dict[str, list[Version]]:
    """Return the versions of every line `name==version`; there can be one for each Python."""
    found: dict[str, list[Version]] = {}
    for name, version in re.findall(
        r"^([\w.-]+)==([^\s;]+)", (ROOT / path).read_text(), flags=re.MULTILINE
    ):
        found.setdefault(canonical(name), []).append(Version(version))
    return found


def test_the_lock_file_satisfies_pyproject() -> None:
    locked = pins("requirements-dev.lock")
    for requirement in requirements("cli", "flower", "test", "dev"):
        versions = locked.get(canonical(requirement.name), [])
        assert versions, f"{requirement} is not in requirements-dev.lock: make lock"
        for version in versions:
            assert version in requirement.specifier, f"{requirement}, locked {version}: make lock"


def test_the_lock_file_is_for_every_machine() -> None:
    text = (ROOT / "requirements-dev.lock").read_text()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    entry = r"[\w.-]+==[\w.+!]+( ; [^/\\]+)? \\"
    hashes = r"    --hash=sha256:[0-9a-f]{64}( \\)?"
    strange = [line for line in lines if not re.fullmatch(f"{entry}|{hashes}", line)]
    assert not strange, "neither a pin nor a hash"
    heavy = [name for name in pins("requirements-dev.lock") if re.match("torch|nvidia|cuda", name)]
    assert not heavy


@pytest.mark.parametrize("extras", [("cli", "test"), ("cli", "flower", "test")], ids="-".join)
def test_the_oldest_versions_are_the_lower_bounds(extras: tuple[str, ...]) -> None:
    name = "constraints-oldest-flower.txt" if "flower" in extras else "constraints-oldest.txt"
    oldest = pins(f".github/{name}")
    bounds: dict[str, Version] = {}
    for requirement in requirements(*extras):
        (bound,) = [s.version for s in requirement.specifier if s.operator in (">=", "==")]
        package = canonical(requirement.name)
        bounds[package] = max(Version(bound), bounds.get(package, Version("0")))
    if "flower" in extras:
        bounds["rich"] = Version("14")  # Flower's own bound
        bounds["pydantic"] = Version("2.9")  # that of fastapi, which Flower needs
    # The linters are no dependency of the code, and are only run at the locked versions.
    del bounds["mypy"], bounds["ruff"]
    assert set(oldest) == set(bounds)
    for package, lowest in bounds.items():
        (pin,) = oldest[package]
        # `>=1.11` is met by 1.11.0; the pin is its first release that can be installed.
        same = pin.release[: len(lowest.release)] == lowest.release
        assert same, f"{package} is allowed from {lowest}, {name} has {pin}"


def anchors(page: Path) -> set[str]:
    """Return the names GitHub gives to the headings of a page."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ +(.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).strip().replace(" ", "-") for h in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_resolve(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"https?://|mailto:", target):
            continue
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        assert file.exists(), f"{page.name} links to {target}"
        if anchor:
            assert anchor in anchors(file), f"{page.name} links to {target}"


def test_the_changelog_has_the_headings_of_keep_a_changelog() -> None:
    headings = re.findall(r"^(##+) (.+)$", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert headings[0] == ("##", "[Unreleased]")
    kinds = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    for level, heading in headings[1:]:
        if level == "##":
            assert re.fullmatch(r"\[\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d", heading), heading
        else:
            assert (level, heading in kinds) == ("###", True), heading


def test_targets_that_pages_name_exist() -> None:
    made = set(re.findall(r"^([\w ]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    targets = {name for line in made for name in line.split()}
    files = [*PAGES, *ROOT.glob(".github/workflows/*.yml")]
    named = {
        (file.name, target)
        for file in files
        for target in re.findall(r"(?:`|run: |^)make (\w+)", file.read_text(), flags=re.MULTILINE)
    }
    assert ("CONTRIBUTING.md", "lock") in named
    assert not [pair for pair in named if pair[1] not in targets]
