"""Compiles the modules that ``broker.compiled`` names, by mypyc, to machine code. docs/adr/0018-compiled-modules.md has
the reasons.

    python compile_modules.py                          for this interpreter, beside the sources; make run and make test
                                                       do this
    python compile_modules.py wheels [x86_64] [aarch64]
                                                       wheels for Linux, in ./dist; make wheels does this

A build takes about half a minute. It is kept in ``~/.cache/jetblock``, so a second checkout with the same sources only
copies it. mypyc and, for wheels, a C compiler for both processors (Zig's) come from packages that are installed into a
temporary folder if this environment lacks them.

Without a build, the broker runs the sources. So no failure here is one of ``make run``: one line says what is missing.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping
from pathlib import Path

from broker.compiled import MODULES, PURE, SUFFIX, build_name, library_name

ROOT = Path(__file__).resolve().parent
TOOLS = ("mypy>=1.14", "setuptools>=65")
WHEEL_TOOLS = ("hatchling>=1.26", "ziglang>=0.13")
GLIBC = "2.17"
"""The oldest C library on which a wheel runs: that of every Linux distribution since 2014."""
BUILDS_KEPT = 8
SECONDS_MAX = 900


class CannotCompile(Exception):
    """There is no build; the text is one line that says why. ``output`` has all that the failed program printed."""

    output = ""


def main(words: list[str]) -> int:
    if words[:1] == ["wheels"]:
        return make_wheels(words[1:] or ["x86_64", "aarch64"])
    if words[:1] == ["into"]:  # called by hatch_build.py
        root, package, arch = words[1:]
        return make_for_wheel(Path(root), package, arch)
    if words[:1] == ["mypyc"]:  # called by compile_modules
        run_mypyc(Path(words[1]), words[2], Path(words[3]))
        return 0
    return make_here(ROOT)


def make_here(root: Path) -> int:
    """Put a build beside the sources of the checkout ``root``, unless it is there already."""
    folder = root / "broker" / "compiled"
    name = build_name(str(root / "broker"))
    target, failed, kept = folder / name, folder / f"{name}.failed", _cache() / name
    if target.is_dir() or os.environ.get(PURE, "0") not in ("", "0"):
        return 0
    try:
        if not _install_kept(kept, target, root):
            if failed.exists():
                raise CannotCompile(f"compiling has failed before; {failed} says why, remove it to try again")
            _check_compiler()
            print("Compiling the hottest modules, once for these sources: this takes half a minute ...", flush=True)
            try:
                with tempfile.TemporaryDirectory(prefix="jetblock-compiled-") as temporary:
                    compile_modules(root, "broker", Path(temporary) / name)
                    _install(Path(temporary) / name, target, root)
            except CannotCompile as error:
                failed.write_text(f"{error}\n{error.output}")
                raise
            _keep(target, kept)
    except (CannotCompile, OSError) as error:
        print(f"The broker will run as pure Python, which is slower: {error}")
        return 0
    for old in folder.glob(f"*{target.suffix}"):
        if old != target:
            shutil.rmtree(old)
    return 0


def compile_modules(root: Path, package: str, build: Path, environ: Mapping[str, str] | None = None,
                    suffix: str = SUFFIX) -> None:
    """Compile the modules of ``package``, which is below ``root``, into the folder ``build``.

    Args: ``environ``: variables for the compiler; ``suffix``: the end of the files' names for the wanted interpreter.
    Raises: CannotCompile.
    """
    with tempfile.TemporaryDirectory(prefix="jetblock-mypyc-") as temporary:
        variables = dict(environ or {})
        if not _has("mypyc", "setuptools"):
            variables["PYTHONPATH"] = _tools(Path(temporary) / "tools", TOOLS)
        made = Path(temporary) / "made"
        _run([sys.executable, __file__, "mypyc", str(root), package, str(made)], variables)
        build.mkdir(parents=True)
        library = library_name(build.name)
        shutil.copy(made / f"library{SUFFIX}", build / (library + suffix))
        for module in MODULES:
            place = made.joinpath(*package.split("."), *module.split("."))
            shutil.copy(place.with_name(place.name + SUFFIX), build / (module + suffix))


def run_mypyc(root: Path, package: str, made: Path) -> None:
    """Compile in this process, which mypyc ends if a module cannot be compiled."""
    from mypyc.build import mypycify
    from setuptools import setup

    os.chdir(root)
    base = Path(*package.split("."))
    paths = [f"{base.joinpath(*module.split('.'))}.py" for module in MODULES]
    library = library_name(build_name(str(base)))
    options = ["--config-file=", f"--cache-dir={os.devnull}", "--follow-imports=silent", "--ignore-missing-imports"]
    extensions = mypycify([*options, *paths], opt_level="3", debug_level="0", target_dir=str(made / "c"),
                          group_name=library.removesuffix("__mypyc"))
    os.chdir(made)  # setuptools would read pyproject.toml, which is not for it
    setup(name="jetblock-compiled", packages=[], ext_modules=extensions,
          script_args=["-q", "build_ext", "--build-lib", str(made), "--build-temp", str(made / "objects")])
    (made / f"{library}{SUFFIX}").rename(made / f"library{SUFFIX}")


def make_wheels(arches: list[str]) -> int:
    """Make a wheel for each processor, with the C compiler of the package ziglang: no container is needed."""
    with tempfile.TemporaryDirectory(prefix="jetblock-wheels-") as temporary:
        tools = install_tools(Path(temporary))
        for arch in arches:
            print(f"Making the wheel for Linux on {arch} ...", flush=True)
            environ = {"PYTHONPATH": tools, "JETBLOCK_WHEEL": arch}
            words = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", "dist"]
            print(_run(words, environ, ROOT).strip())
    return 0


def install_tools(folder: Path) -> str:
    """Install what makes wheels into ``folder``. Returns: that folder, for PYTHONPATH. Raises: CannotCompile."""
    return _tools(folder, (*TOOLS, *WHEEL_TOOLS))


def make_for_wheel(root: Path, package: str, arch: str) -> int:
    """Add a build to the sources of ``package`` below ``root``, as they will be in a wheel for ``arch``."""
    folder = root.joinpath(*package.split("."))
    suffix = SUFFIX.replace(f"-{os.uname().machine}-", f"-{arch}-")
    zig = f"{shlex.quote(sys.executable)} -m ziglang cc -target {arch}-linux-gnu.{GLIBC}"
    build = folder / "compiled" / build_name(str(folder), suffix)
    compile_modules(root, package, build, {"CC": zig, "LDSHARED": f"{zig} -shared"}, suffix)
    return 0


def _has(*modules: str) -> bool:
    from importlib.util import find_spec

    return all(find_spec(module) is not None for module in modules)


def _tools(folder: Path, requirements: tuple[str, ...]) -> str:
    """Install packages into ``folder``. Returns: that folder, for PYTHONPATH."""
    _run([sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--retries", "1", "--target",
          str(folder), *requirements])
    return str(folder)


def _check_compiler() -> None:
    """Raise CannotCompile if there is no C compiler, or if the interpreter's headers are missing."""
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    if shutil.which(compiler[0]) is None:
        raise CannotCompile(f"there is no C compiler ({compiler[0]}); on Debian: apt install gcc")
    headers = sysconfig.get_path("include")
    if not Path(headers, "Python.h").is_file():
        raise CannotCompile(f"{headers} has no Python.h; on Debian: apt install python3-dev")


def _install(build: Path, target: Path, root: Path) -> None:
    """Copy a build beside the sources, in one step. Raises: CannotCompile if the broker cannot use it."""
    new = target.with_name(f"new-{os.getpid()}")
    shutil.copytree(build, new)
    try:
        new.rename(target)
    except OSError:  # another process was faster
        shutil.rmtree(new)
    try:
        check = "import sys, broker, broker.runtime.app; sys.exit(not broker.COMPILED)"
        _run([sys.executable, "-c", check], {"PYTHONPATH": str(root)})
    except CannotCompile:
        shutil.rmtree(target)
        raise


def _install_kept(kept: Path, target: Path, root: Path) -> bool:
    """Use the build of the cache. Returns: False if there is none that the broker can use."""
    try:
        _install(kept, target, root)
    except (CannotCompile, OSError):
        return False
    return True


def _keep(build: Path, kept: Path) -> None:
    """Copy a build to the cache, which keeps the newest ones."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(build, kept, dirs_exist_ok=True)
    for old in sorted(kept.parent.iterdir(), key=lambda path: path.stat().st_mtime)[:-BUILDS_KEPT]:
        shutil.rmtree(old)


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "jetblock" / "compiled"


def _run(words: list[str], environ: Mapping[str, str] | None = None, folder: Path | None = None) -> str:
    """Run a program. Returns: its output. Raises: CannotCompile with its first error or its last line."""
    try:
        done = subprocess.run(words, env={**os.environ, **(environ or {})}, cwd=folder, text=True, check=False,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=SECONDS_MAX)
    except subprocess.TimeoutExpired:
        raise CannotCompile(f"{shlex.join(words[:4])} did not end within {SECONDS_MAX} seconds") from None
    if done.returncode:
        lines = [line for line in done.stdout.splitlines() if line.strip()] or ["it failed silently"]
        error = CannotCompile(next((line for line in lines if "error:" in line.lower()), lines[-1]))
        error.output = done.stdout
        raise error
    return done.stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
