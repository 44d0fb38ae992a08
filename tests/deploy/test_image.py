"""The Dockerfile by a linter, and the context of the image: what the build gets, and nothing else."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

import release

ROOT = Path(__file__).resolve().parents[2]


def test_the_dockerfile_passes_a_linter() -> None:
    """hadolint finds nothing, with shellcheck for the commands."""
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([hadolint, ROOT / "Dockerfile"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_context_has_the_sources_alone(tmp_path: Path) -> None:
    """Each source that COPY names is in the context; bytecode and builds of this machine are not, and two contexts of
    the same files are equal."""
    made = []
    for name in ("a.tar.gz", "b.tar.gz"):
        release.pack_context(tmp_path / name)
        with tarfile.open(tmp_path / name) as archive:
            made.append([(entry.name, entry.size, entry.mtime, entry.uid) for entry in archive])
    names = {entry[0] for entry in made[0]}
    assert made[0] == made[1]
    assert {"Dockerfile", "pyproject.toml", "compile_modules.py", "broker/cli.py", "jetblock/py.typed"} <= names
    assert not [name for name in names if ".cpython-" in name or name.endswith((".pyc", ".so"))]
    assert not {name.split("/")[0] for name in names} & {"tests", "docs", "bench", ".git", "data"}


def test_instructions() -> None:
    """Comments may stand between continued lines, as in a Dockerfile."""
    found = release.instructions("# c\nARG A=1\nRUN a \\\n# why\n && b\n\nCMD [\"x\"]\n")
    assert [(word, " ".join(text.split())) for word, text in found] == [
        ("ARG", "A=1"), ("RUN", "a && b"), ("CMD", '["x"]')]
