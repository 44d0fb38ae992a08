"""The installed package: wheel and source distribution, beside a user's folder ``broker`` that breaks if it is
imported."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.pipeline.elsewhere import python_without_jetblock
from tests.real import parts
from tests.real.jvm import spark_environ
from tests.real.s3 import MISSING

ROOT = Path(__file__).parents[2]
INPUTS = ("broker", "jetblock", "pyproject.toml", "hatch_build.py", "compile_modules.py", "README.md", "LICENSE",
          ".gitignore")


class Installed(NamedTuple):
    """An installation. bin: the environment's commands; project: a folder with a package ``broker``; environ puts it
    first on sys.path."""

    bin: Path
    site: Path
    project: Path
    environ: dict[str, str]

    def run(self, *words: str | Path, environ: Mapping[str, str] | None = None) -> str:
        return run(*words, cwd=self.project, environ={**self.environ, **(environ or {})})

    def python(self, code: str, environ: Mapping[str, str] | None = None) -> str:
        """Run code as a script in the project: its folder is the first on sys.path."""
        script = self.project / "script.py"
        script.write_text(code)
        return self.run(self.bin / "python", script, environ=environ)


def run(*words: str | Path, cwd: Path, environ: Mapping[str, str] | None = None) -> str:
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTEST_ADDOPTS")}
    done = subprocess.run(words, capture_output=True, text=True, timeout=550, cwd=cwd, env=clean | dict(environ or {}),
                          check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def pip_install(python: Path, what: Path, folder: Path) -> None:
    """Install without dependencies: the environment has them already, or the test needs none."""
    run(sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", what, cwd=folder)


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the wheel and the source distribution, built as for a release."""
    folder = tmp_path_factory.mktemp("dist")
    checkout = folder / "checkout"
    checkout.mkdir()
    for name in INPUTS:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, checkout / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, checkout / name)
    run(sys.executable, "-m", "pip", "install", "-q", "--target", folder / "hatchling", "hatchling>=1.26", cwd=folder)
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-t", "wheel", "-d", folder, cwd=checkout,
        environ={"PYTHONPATH": str(folder / "hatchling")})
    return folder


@pytest.fixture(scope="module")
def installed(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The wheel in a new environment."""
    folder = tmp_path_factory.mktemp("installed")
    python = python_without_jetblock(folder)
    [wheel] = dist.glob("*.whl")
    pip_install(python, wheel, folder)
    project = folder / "project"
    (project / "broker").mkdir(parents=True)
    (project / "broker" / "__init__.py").write_text('raise ImportError("the user\'s own broker")\n')
    [site] = (folder / "venv" / "lib").glob("python*/site-packages")
    return Installed(python.parent, site, project, {"PYTHONPATH": str(project)})


def modules(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*.py") if "autoload" not in path.parts}


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_the_source_distribution_can_be_installed(dist: Path, tmp_path: Path) -> None:
    """The archive has the build hook: pip builds a wheel from it without dependencies, and the command runs."""
    [archive] = dist.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        assert any(name.endswith("/hatch_build.py") for name in opened.getnames())
    run(sys.executable, "-m", "venv", "--without-pip", "clean", cwd=tmp_path)
    pip_install(tmp_path / "clean" / "bin" / "python", archive, tmp_path)
    assert run(tmp_path / "clean" / "bin" / "jetblock", "--version", cwd=tmp_path).startswith("nats-server: v")


@pytest.mark.timeout(600)
def test_the_wheel_has_every_module_below_jetblock(installed: Installed) -> None:
    """The wheel has no package ``broker``, and each line of a module has the same number as in the sources, so
    tracebacks fit."""
    assert not (installed.site / "broker").exists()
    internal = installed.site / "jetblock" / "_broker"
    assert modules(internal) == modules(ROOT / "broker")
    for name in sorted(modules(internal)):
        lines, sources = (internal / name).read_text().splitlines(), (ROOT / "broker" / name).read_text().splitlines()
        assert [line.replace("from jetblock._broker", "from broker", 1) for line in lines] == sources, name
    assert modules(installed.site / "jetblock") - modules(ROOT / "jetblock") == {f"_broker/{name}"
                                                                                 for name in modules(internal)}
    assert (installed.site / "jetblock" / "py.typed").is_file()
    assert (installed.site / "pyspark_jetblock" / "__init__.py").is_file()


@pytest.mark.timeout(600)
def test_the_command_runs_in_a_folder_with_a_package_broker(installed: Installed) -> None:
    """The command works as a script and by ``python -m``, which puts the current folder on sys.path; so do the commands
    with their own modules."""
    module = [installed.bin / "python", "-m", "jetblock"]
    for command in ([installed.bin / "jetblock"], module):
        assert installed.run(*command, "--version").startswith("nats-server: v")
        assert "usage" in installed.run(*command, "inspect", "--help").lower()
    for name in ("fsck", "copy", "migrate", "archive", "adopt", "cost", "pipeline"):
        assert "usage" in installed.run(*module, name, "--help").lower()


@pytest.mark.timeout(600)
def test_a_program_with_a_package_broker_embeds_one(installed: Installed) -> None:
    """A program embeds the broker, creates its first stream, which loads modules by their names, and uses monitoring,
    staging and the store."""
    printed = installed.python("""
import asyncio, json, sys, tempfile, time, urllib.request
import nats
from jetblock import Broker, ConfigError
from jetblock.staging import RunWriter, request_id_of
from jetblock.store import open_store, read_messages, read_snapshot

async def main(folder):
    async with Broker(folder, settings={"monitoring.port": -1}) as broker:
        [page] = broker._app.ports()["monitoring"]
        assert "server_id" in (await asyncio.to_thread(urllib.request.urlopen, page + "/varz")).read().decode()
        client = await nats.connect(broker.url)
        js = client.jetstream()
        await js.add_stream(name="S", subjects=["s"])
        await js.publish("s", b"published")
        await (await js.pull_subscribe("s", durable="d")).fetch(1)
        await client.close()
    store = open_store(f"file://{folder}")
    stream = (await read_snapshot(store, 0)).state.stream("$G", "S")
    writer = RunWriter("$G", "S", stream.stream_id, now_ns=time.time_ns())
    writer.add(b"s", b"staged")
    runs = writer.finish()
    for one in (*runs, writer.request(request_id_of("import"), 0)):
        await store.put(one.key, one.data)
    await store.close()
    async with Broker(folder) as broker:
        client = await nats.connect(broker.url)
        asked = json.dumps({"request": f"{request_id_of('import'):016x}"}).encode()
        assert json.loads((await client.request("$JS.API.JETBLOCK.ADOPT.S", asked, timeout=20)).data)["messages"] == 1
        await client.close()
    print([message.data async for message in read_messages(open_store(f"file://{folder}", read_only=True), "S")])
    try:
        Broker("ftp://x")
    except ConfigError as error:
        print(type(error).__module__)

with tempfile.TemporaryDirectory() as folder:
    asyncio.run(main(folder))
assert "broker" not in sys.modules
""")
    assert printed.splitlines() == ["[b'published', b'staged']", "jetblock._broker.config.settings"]


@pytest.mark.timeout(600)
def test_pytest_finds_the_fixture_beside_a_package_broker(installed: Installed) -> None:
    """pytest loads the plugin by itself. Tests with and without asyncio use the broker, with the marker's arguments."""
    (installed.project / "test_own.py").write_text("""
import asyncio, sys
import nats, pytest

async def publish(url, **options):
    client = await nats.connect(url, **options)
    js = client.jetstream()
    await js.add_stream(name="S", subjects=["s"])
    answer = await js.publish("s", b"x")
    await client.close()
    return answer.seq

def test_plain(nats_broker):
    url = nats_broker.url
    assert asyncio.run(publish(url)) == 1
    nats_broker.restart()
    assert nats_broker.url == url
    assert asyncio.run(publish(url)) == 2

@pytest.mark.asyncio
@pytest.mark.nats_broker("memory://", settings={"auth.user": "u", "auth.password": "p"})
async def test_with_asyncio(nats_broker):
    assert await publish(nats_broker.url, user="u", password="p") == 1
    assert "broker" not in sys.modules
""")
    out = installed.run(installed.bin / "python", "-m", "pytest", "-q", "--strict-markers", "-p", "no:cacheprovider",
                        "test_own.py")
    assert "2 passed" in out


@pytest.mark.timeout(600)
def test_spark_reads_a_stream_beside_a_package_broker(installed: Installed, tmp_path: Path) -> None:
    """Spark finds the installed source by itself, and unpickles its classes in planner and workers, which have the
    project on sys.path. The zip for other workers has the same modules."""
    try:
        environ = spark_environ()
    except parts.PartMissing as error:
        pytest.skip(f"{MISSING}java: {error}")
    python = str(installed.bin / "python")
    printed = installed.python("""
import asyncio, sys, tempfile
import nats
from pyspark.sql import SparkSession
from jetblock.spark import builder_conf, read, register, subject_token
from jetblock.testing import BrokerThread

async def publish(url):
    client = await nats.connect(url)
    js = client.jetstream()
    await js.add_stream(name="S", subjects=["s.*"])
    for number in range(3):
        await js.publish(f"s.{number}", b"x")
    await client.close()

with tempfile.TemporaryDirectory() as folder:
    with BrokerThread(folder) as broker:
        asyncio.run(publish(broker.url))
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    spark = builder.config(map=builder_conf()).getOrCreate()
    print(spark.read.format("jetblock").options(store=f"file://{folder}", stream="S").load().count())
    register(spark)
    messages = read(spark, store=f"file://{folder}", stream="S")
    rows = messages.select(subject_token("subject", 2).alias("token")).collect()
    print(sorted(row.token for row in rows))
assert "broker" not in sys.modules
""", environ | {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python})
    assert printed.splitlines() == ["3", "['0', '1', '2']"]
    installed.run(installed.bin / "jetblock", "pipeline", "zip", tmp_path / "jetblock.zip")
    names = zipfile.ZipFile(tmp_path / "jetblock.zip").namelist()
    assert {"jetblock/__init__.py", "jetblock/spark.py", "jetblock/_broker/pipeline/spark/source.py"} <= set(names)
    code = (f"import sys; sys.path.insert(0, {str(tmp_path / 'jetblock.zip')!r})\nimport importlib\n"
            f"for name in ('pyspark_jetblock', 'jetblock.spark', 'jetblock.staging', "
            f"'jetblock._broker.pipeline.read.scan'):\n    assert 'jetblock.zip' in "
            "importlib.import_module(name).__file__\n")
    installed.python(code)
