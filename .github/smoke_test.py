"""Install a built distribution as users would, and use it: smoke_test.py dist/adcs-0.1.0.tar.gz"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

SELECT = """
import numpy, adcs
rows = numpy.random.default_rng(0).standard_normal((30, 50))
cohort = adcs.select(rows, m=5, quality=rows[:, 0], theta=0.5)
assert len(set(cohort.tolist())) == 5, cohort
"""

COMPARE = ["compare", "--data", "digits", "--rounds", "40", "--eval-every", "20", "--jobs", "1"]


def main(built: Path) -> None:
    """Install `built` without and with the extra `cli`, and use what is installed."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        venv.create(place / "env", with_pip=True)
        programs = place / "env" / ("Scripts" if os.name == "nt" else "bin")

        def run(program: str, *arguments: str, status: int = 0) -> str:
            line = [str(programs / program), *arguments]
            done = subprocess.run(line, cwd=place, text=True, capture_output=True, check=False)
            if done.returncode != status:
                sys.exit(f"{line} ended with {done.returncode}\n{done.stdout}{done.stderr}")
            return done.stdout + done.stderr

        def expect(words: str, text: str) -> None:
            if words not in text:
                sys.exit(f"{words!r} is not in:\n{text}")

        # The core alone: a library, and a command that says what it lacks.
        run("pip", "install", "--quiet", str(built))
        run("python", "-c", SELECT)
        expect("pip install 'adcs[cli]'", run("adcs", status=2))
        # The command line.
        run("pip", "install", "--quiet", f"{built}[cli]")
        version = run("python", "-c", "import importlib.metadata as m; print(m.version('adcs'))")
        expect(version.strip(), run("adcs", "--version"))
        expect(f"-{version.strip()}", built.name)
        expect("ADCS", run("adcs", *COMPARE, "--out", "run"))
        expect("ADCS", run("adcs", "explain", "run", "--round", "20"))
    print(f"{built}: installs and runs")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
