"""The command line: adcs compare | sweep | merge | data | explain | theory."""

from __future__ import annotations

import sys

NEEDED = ("typer", "rich", "matplotlib", "pydantic")


def main() -> None:
    """Run the command line, or name the packages to install if the extra `cli` is missing."""
    from importlib.util import find_spec

    from adcs.cli.stopping import end_like_ctrl_c, exit_code

    end_like_ctrl_c()
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        print(
            f"adcs: the command line needs {', '.join(missing)}; pip install 'adcs[cli]' brings it",
            file=sys.stderr,
        )
        sys.exit(2)
    try:
        from adcs.cli.app import app

        app()
    except KeyboardInterrupt as stop:
        print("adcs: stopped", file=sys.stderr)
        sys.exit(exit_code(stop))
