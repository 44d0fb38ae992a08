"""Spark where jetblock is not installed: an interpreter with only its dependencies, in a separate process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from broker.pipeline.bundle import write_zip

__all__ = ["make_zip", "python_without_jetblock", "run"]

ROOT = Path(__file__).resolve().parents[2]


def make_zip(folder: Path) -> Path:
    path = folder / "jetblock.zip"
    with path.open("wb") as out:
        write_zip(out)
    return path


def python_without_jetblock(folder: Path, *first: Path) -> Path:
    """Make an interpreter with this one's packages, but without the additions of editable installs.

    Args: ``first``: folders of packages that come before those of this interpreter.
    """
    venv.create(folder / "venv", with_pip=False)
    python = folder / "venv" / "bin" / "python"
    site = subprocess.run([str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
                          capture_output=True, text=True, check=True).stdout.strip()
    # A folder that a .pth file names is searched, but .pth files in it are not read.
    packages = [*map(str, first), *(entry for entry in sys.path if entry.endswith("site-packages"))]
    Path(site, "packages.pth").write_text("\n".join(packages) + "\n")
    return python


def run(python: Path, script: str, arguments: Mapping[str, Any], environ: Mapping[str, str], folder: Path,
        seconds: float = 540) -> Any:
    """Run a script that takes its arguments from ``sys.argv[1]`` and prints its result as JSON on the last line."""
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME", "SPARK_HOME")}
    env |= environ
    env |= {"PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python),
            "SPARK_WORKER_DIR": str(folder / "work")}
    (folder / "script.py").write_text(script)
    done = subprocess.run([str(python), "script.py", json.dumps(arguments)], cwd=folder, env=env, capture_output=True,
                          text=True, timeout=seconds, check=False)
    # The script's own traceback is among messages of the JVM about its end.
    error = done.stderr[done.stderr.find("Traceback (most recent"):]
    lines = [line for line in error.splitlines() if not line.lstrip().startswith("at ")]
    assert done.returncode == 0, "\n".join(lines)[:6000]
    return json.loads(done.stdout.splitlines()[-1])
