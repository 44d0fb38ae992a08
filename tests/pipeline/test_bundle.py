"""The zip for Spark's workers: complete, the same bytes each time, and nothing of the server in it."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from broker.pipeline import bundle
from broker.pipeline.cli import main

ROOT = Path(__file__).resolve().parents[2]

FORBIDDEN = ("broker.server", "broker.jetstream", "broker.runtime", "broker.config", "broker.cluster",
             "broker.monitor", "broker.inspect", "aiobotocore", "botocore", "uvloop", "aiohttp", "prometheus_client",
             "pydantic_settings")
"""Modules that the pipeline must never import, because a worker has none of them."""

WITH_SPARK = frozenset({"source", "batch", "files", "refusing", "sink", "stream"})
"""The modules that Spark calls into; all others of the pipeline import without it."""


def without_spark() -> list[str]:
    return [name for name in bundle.modules() if name.startswith("broker.pipeline.")
            and name.rpartition(".")[2] not in WITH_SPARK]


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "jetblock.zip"
    with path.open("wb") as out:
        bundle.write_zip(out)
    return path


def python(code: str, path: Path, tmp_path: Path) -> str:
    """Run code where ``broker`` can be imported only from ``path``."""
    environ = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    # The interpreter runs without site, because an editable install would bring the checkout in; its packages come last
    # in the path.
    packages = [entry for entry in sys.path if entry.endswith("site-packages")]
    done = subprocess.run([sys.executable, "-S", "-c", f"import sys; sys.path[:0] = [{str(path)!r}]; "
                           f"sys.path += {packages!r}\n{code}"],
                          capture_output=True, text=True, env=environ, cwd=tmp_path, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_module_imports_from_the_zip_alone(archive: Path, tmp_path: Path) -> None:
    """Each module in the zip imports while all modules that workers lack are blocked; everything for a plan and a task
    is in the zip."""
    names = [name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
             for name in zipfile.ZipFile(archive).namelist()]
    # Workers never import these modules, which are only named.
    names = [name for name in names
             if not name.endswith(("objectstore.s3", "objectstore.s3_objects", "objectstore.credentials"))]
    out = python(f"""
import importlib, importlib.abc
class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if any(name == one or name.startswith(one + ".") for one in {FORBIDDEN!r}):
            raise AssertionError("imports " + name)
sys.meta_path.insert(0, Blocked())
for name in {names!r}:
    module = importlib.import_module(name)
    assert module.__file__.startswith({str(archive)!r}), module.__file__
print(len({names!r}))
""", archive, tmp_path)
    assert int(out) > 60
    assert set(without_spark()) < set(names)
    assert "pyspark_jetblock" in names
    assert not [name for name in names if name.startswith(FORBIDDEN)]


def test_the_job_erase_names_what_a_driver_with_the_zip_alone_lacks(archive: Path, tmp_path: Path) -> None:
    out = python("""
from jetblock.spark import erase
try:
    erase(None, store="file:///nowhere", stream="S", to="reports", subjects=">")
except Exception as failure:
    print(failure)
""", archive, tmp_path)
    assert out.strip() == ("the job erase needs an installed jetblock on the driver, because the zip for Spark's "
                           "workers has no broker: run pip install jetblock there")


def test_pyspark_is_imported_by_nothing_that_runs_without_spark(archive: Path, tmp_path: Path) -> None:
    out = python(f"""
import importlib
for name in {without_spark()!r}:
    importlib.import_module(name)
print([name for name in sys.modules if name.split(".")[0] in ("pyspark", "pandas")])
""", archive, tmp_path)
    assert out.strip() == "[]"


def test_the_module_of_every_spark_session_imports_little(archive: Path, tmp_path: Path) -> None:
    """Spark imports pyspark_jetblock in each session, even if it never reads a stream."""
    out = python("""
import pyspark.sql.datasource
before = set(sys.modules)
import pyspark_jetblock
assert pyspark_jetblock.DefaultSource.name() == "jetblock"
print([name for name in set(sys.modules) - before
       if name.split(".")[0] not in ("broker", "jetblock", "pyspark_jetblock")
       and name.split(".")[0] not in sys.stdlib_module_names])
""", archive, tmp_path)
    assert out.strip() == "[]"


def test_same_sources_same_bytes(archive: Path) -> None:
    """The bytes do not depend on when the zip is made."""
    again = io.BytesIO()
    bundle.write_zip(again)
    assert again.getvalue() == archive.read_bytes()
    assert all(entry.date_time[0] == 1980 for entry in zipfile.ZipFile(archive).infolist())


def test_spark_finds_the_source_in_the_zip(archive: Path, tmp_path: Path) -> None:
    """Spark searches the folders and zips of sys.path; ``pkgutil`` does the same here."""
    out = python("""
import pkgutil
print([one.name for one in pkgutil.iter_modules() if one.name.startswith("pyspark_j")])
""", archive, tmp_path)
    assert out.strip() == "['pyspark_jetblock']"


def test_zip_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.zip"
    assert main(["zip", str(out)]) == 0
    assert capsys.readouterr().out.startswith(f"{out}: ")
    assert zipfile.ZipFile(out).testzip() is None
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize(("name", "why"), [("out.whl", "only if its name ends in .zip"),
                                           ("no/such/out.zip", "No such file or directory")])
def test_zip_command_that_cannot(name: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["zip", str(tmp_path / name)]) == 2
    shown = capsys.readouterr()
    assert why in shown.err
    assert shown.out == ""
    assert list(tmp_path.iterdir()) == []
