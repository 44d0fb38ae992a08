"""The source distribution: built as for a release, installed into a new environment, and run there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
INPUTS = ("broker", "pyproject.toml", "hatch_build.py", "README.md", "LICENSE")


def run(*words: str | Path, cwd: Path) -> str:
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, cwd=cwd, env=environ, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def environment(folder: Path) -> Path:
    """A new environment without packages; returns its interpreter."""
    run(sys.executable, "-m", "venv", folder, cwd=folder.parent)
    return folder / "bin" / "python"


@pytest.mark.timeout(600)
def test_it_can_be_installed(tmp_path: Path) -> None:
    """The archive has the build hook; pip builds a wheel of it that has all modules, and the command runs. Dependencies are left
    out: the version needs none."""
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    for name in INPUTS:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, checkout / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, checkout / name)
    builder = environment(tmp_path / "builder")
    run(builder, "-m", "pip", "install", "-q", "hatchling>=1.26", cwd=tmp_path)
    run(builder, "-m", "hatchling", "build", "-t", "sdist", "-d", tmp_path / "dist", cwd=checkout)
    [archive] = (tmp_path / "dist").glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        assert any(name.endswith("/hatch_build.py") for name in opened.getnames())
    clean = environment(tmp_path / "clean")
    run(clean, "-m", "pip", "install", "-q", "--no-deps", archive, cwd=tmp_path)
    assert run(tmp_path / "clean" / "bin" / "jetblock", "--version", cwd=tmp_path).startswith("nats-server: v")
    [installed] = (tmp_path / "clean" / "lib").glob("python*/site-packages")

    def modules(folder: Path) -> set[str]:
        return {path.relative_to(folder).as_posix() for path in (folder / "broker").rglob("*.py") if "autoload" not in path.parts}

    assert modules(installed) == modules(ROOT)
    assert (installed / "pyspark_jetblock" / "__init__.py").is_file()
