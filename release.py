"""Builds what a release publishes, into ./dist, and tries each part in a clean environment: ``make release``.

    jetblock-VERSION.tar.gz               the source distribution
    jetblock-VERSION-py3-none-any.whl     the wheel of the sources, for any machine
    jetblock-VERSION-cp…-manylinux….whl   wheels with compiled modules, for Linux on x86-64 and arm64
    jetblock-VERSION-image.tar.gz         the context of the container image: ``docker build - < FILE``

Each distribution that fits this machine is installed, with its dependencies, into a virtual environment of its own.
There a broker starts, a stock client publishes and consumes, the broker is killed and started again, and it ends
cleanly. The image's context is tried likewise: the commands of its Dockerfile run in a folder, but for those that need
root, and its command starts the broker that they install. A wheel for another processor is only read.

Nothing is published.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import compile_modules

ROOT = Path(__file__).resolve().parent
ARCHES = {"x86_64": ("amd64", 62), "aarch64": ("arm64", 183)}
"""For each processor, its name in images, and its number in ELF files."""
SECONDS_MAX = 900
_PLACES = re.compile(r"(?<![\w.$/-])/(?=(?:src|wheels|opt/jetblock|etc/jetblock|var/lib/jetblock)\b)")
"""The beginnings of the image's own paths in the Dockerfile's commands."""

SMOKE = '''
import asyncio, json, pathlib, signal, subprocess, sys, tempfile, time
import nats

async def talk(url, first):
    client = await nats.connect(url)
    js = client.jetstream()
    if first:
        await js.add_stream(name="ORDERS", subjects=["orders.>"])
    for number in range(50):
        await js.publish("orders.eu", b"%d" % number)
    found = await (await js.pull_subscribe("orders.>", durable=f"d{first}")).fetch(50 * (2 - first), timeout=30)
    [await one.ack() for one in found]
    assert [one.metadata.sequence.stream for one in found] == list(range(1, 1 + 50 * (2 - first)))
    await client.close()

def start(words, folder):
    process = subprocess.Popen([*words, "-a", "127.0.0.1", "-p", "-1", "-m", "-1", "--ports_file_dir", folder])
    path = pathlib.Path(folder, f"nats-server_{process.pid}.ports")
    until = time.monotonic() + 120
    while not path.exists():
        assert process.poll() is None and time.monotonic() < until, "the broker did not start"
        time.sleep(0.05)
    return process, json.loads(path.read_text())["nats"][0]

words = sys.argv[1:]
with tempfile.TemporaryDirectory() as folder:
    for first in (True, False):
        process, url = start(words, folder)
        try:
            asyncio.run(talk(url, first))
        finally:
            process.send_signal(signal.SIGKILL if first else signal.SIGTERM)
            status = process.wait(60)
    assert status == 0, status
'''


class Failed(Exception):
    """A step has failed; the text says which, and what it printed."""


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="make release", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="folder for the parts (default: ./dist)")
    parser.add_argument("--arch", action="append", choices=sorted(ARCHES), help="a wheel for this processor only")
    given = parser.parse_args(words)
    try:
        parts = build(given.dist, given.arch or list(ARCHES))
        for part in parts:
            print(f"{part.name:<64} {try_part(part)}", flush=True)
    except (Failed, compile_modules.CannotCompile) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def build(dist: Path, arches: list[str]) -> list[Path]:
    """Build all parts into ``dist``, in place of earlier ones. Returns: their paths. Raises: Failed."""
    dist.mkdir(parents=True, exist_ok=True)
    for old in dist.glob("jetblock-*"):
        old.unlink()
    with tempfile.TemporaryDirectory(prefix="jetblock-release-") as temporary:
        tools = {"PYTHONPATH": compile_modules.install_tools(Path(temporary))}
        hatch = [sys.executable, "-m", "hatchling", "build", "-d", str(dist)]
        print("Building the source distribution and the wheels ...", flush=True)
        run([*hatch, "-t", "sdist", "-t", "wheel"], tools, ROOT)
        for arch in arches:
            run([*hatch, "-t", "wheel"], {**tools, "JETBLOCK_WHEEL": arch}, ROOT)
    [source] = dist.glob("*.tar.gz")
    image = source.with_name(source.name.replace(".tar.gz", "-image.tar.gz"))
    pack_context(image)
    return [source, *sorted(dist.glob("*.whl")), image]


def pack_context(target: Path) -> None:
    """Write the context of the image: the Dockerfile and what .dockerignore lets in, the same bytes for the same files.
    """
    with tarfile.open(target, "w:gz", compresslevel=6) as archive:
        for path in [ROOT / "Dockerfile", ROOT / ".dockerignore", *context_files()]:
            entry = tarfile.TarInfo(path.relative_to(ROOT).as_posix())
            data = path.read_bytes()
            entry.size, entry.mode = len(data), 0o755 if os.access(path, os.X_OK) else 0o644
            archive.addfile(entry, io.BytesIO(data))


def context_files() -> list[Path]:
    """Return the files that .dockerignore lets in. It excludes all, then names what is included."""
    lines = (ROOT / ".dockerignore").read_text().split()
    found: list[Path] = []
    for name in (line[1:] for line in lines if line.startswith("!")):
        found += sorted(path for path in [ROOT / name, *(ROOT / name).rglob("*")] if path.is_file())
    return [path for path in found if not {"__pycache__", ".mypy_cache"} & set(path.parts)
            and ".cpython-" not in path.relative_to(ROOT).as_posix()]


def try_part(part: Path) -> str:
    """Install a part in a clean environment and use it. Returns: what was done. Raises: Failed."""
    with tempfile.TemporaryDirectory(prefix="jetblock-clean-") as temporary:
        folder = Path(temporary)
        if part.name.endswith("-image.tar.gz"):
            return try_image(part, folder)
        arch = next((arch for arch in ARCHES if part.name.endswith(f"_{arch}.whl")), "")
        if arch and arch != os.uname().machine:
            return read_wheel(part, arch)
        run([sys.executable, "-m", "venv", str(folder / "venv")])
        run([str(folder / "venv" / "bin" / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check",
             str(part)], folder=folder)
        smoke(folder / "venv" / "bin", ["--store", f"file://{folder / 'streams'}"], folder)
        version = run([str(folder / "venv" / "bin" / "jetblock"), "--version"], folder=folder)
        if ("hot path: compiled" in version) != bool(arch):
            raise Failed(f"{part.name}: jetblock --version says\n{version}")
        return "installed, used, killed, started again, stopped"


def smoke(programs: Path, arguments: list[str], folder: Path) -> None:
    """Run a broker of an environment, and its own nats-py as the client."""
    (folder / "smoke.py").write_text(SMOKE)
    run([str(programs / "python"), "-I", str(folder / "smoke.py"), str(programs / "jetblock"), *arguments],
        folder=folder)


def read_wheel(wheel: Path, arch: str) -> str:
    """Check that each library of a wheel is for the wheel's processor."""
    libraries = 0
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.endswith(".so"):
                head = archive.read(name)[:20]
                libraries += 1
                if head[:4] != b"\x7fELF" or int.from_bytes(head[18:20], "little") != ARCHES[arch][1]:
                    raise Failed(f"{wheel.name}: {name} is not for {arch}")
    if not libraries:
        raise Failed(f"{wheel.name} has no compiled modules")
    return f"read only: {libraries} libraries for {arch}"


def try_image(context: Path, folder: Path) -> str:
    """Run the Dockerfile's commands in ``folder`` in place of the root directory, and its command.

    Steps that add a user need root and a container, so they do not run; each stage has this machine's Python.
    """
    with tarfile.open(context) as archive:
        archive.extractall(folder / "context", filter="data")
    root = folder / "root"
    programs = folder / "python" / "bin"  # where the commands find `python`, as in the base image
    run([sys.executable, "-m", "venv", str(folder / "python")])
    environ = {"PATH": f"{programs}{os.pathsep}{os.environ.get('PATH', '')}",
               "TARGETARCH": ARCHES[os.uname().machine][0]}
    place, command = root, ""
    for word, text in instructions((folder / "context" / "Dockerfile").read_text()):
        inside = _PLACES.sub(f"{root}/", text)
        if word == "WORKDIR":
            place = Path(inside)
            place.mkdir(parents=True, exist_ok=True)
        elif word == "COPY" and "--from" not in text:
            *sources, target = shlex.split(inside)
            for source in sources:
                copy(folder / "context" / source, place / target)
        elif word == "COPY":
            _, source, target = shlex.split(inside)
            if source != target:
                copy(Path(source), Path(target))
        elif word == "RUN" and "groupadd" not in text:
            run(["sh", "-ec", inside], environ, place if place.is_dir() else root)
        elif word == "CMD":
            command = inside
    (root / "var/lib/jetblock/data").mkdir(parents=True)
    arguments = [str(word) for word in json.loads(command)]
    smoke(root / "opt/jetblock/bin", arguments, folder)
    return "its build steps run, its command used, killed, started again, stopped"


def copy(source: Path, target: Path) -> None:
    """Copy as COPY does: a folder's contents, or a file into a folder or under a name."""
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)


def instructions(dockerfile: str) -> list[tuple[str, str]]:
    """Return the instructions of a Dockerfile, as word and text."""
    lines = [line for line in dockerfile.splitlines() if not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [(word, text.strip()) for word, _, text in (line.partition(" ") for line in joined.splitlines()) if word]


def run(words: list[str], environ: Mapping[str, str] | None = None, folder: Path | None = None) -> str:
    """Run a program. Returns: its output. Raises: Failed."""
    clean = {name: value for name, value in os.environ.items()
             if not name.startswith(("PYTHON", "JETBLOCK_", "VIRTUAL_ENV"))}
    try:
        done = subprocess.run(words, env={**clean, **(environ or {})}, cwd=folder, text=True, check=False,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=SECONDS_MAX)
    except subprocess.TimeoutExpired:
        raise Failed(f"{shlex.join(words[:4])} did not end within {SECONDS_MAX} seconds") from None
    if done.returncode:
        raise Failed(f"{shlex.join(words)} failed:\n{done.stdout[-4000:]}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
