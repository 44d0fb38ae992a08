"""The compiled modules and the sources they come from: the choice between them, and the same tests for both.

The other tests run with the build that ``make test`` has made, if there is a C compiler."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

import pytest

import broker
from broker.compiled import FOLDER, MODULES, PURE, build_name
from tests.harness import BrokerProcess

ROOT = Path(__file__).parent.parent

TESTS = ("tests/protocol/test_parser.py", "tests/protocol/test_parser_fuzz.py", "tests/protocol/test_encoder.py",
         "tests/protocol/test_subject.py", "tests/protocol/leaf", "tests/server/routing",
         "tests/storage/log/test_open_block.py")
"""The tests of the modules that are compiled."""

needs_build = pytest.mark.skipif(
    not Path(FOLDER, build_name(str(ROOT / "broker"))).is_dir(),
    reason="no build of the sources: make compiled makes one, and says why if it cannot")


def python(*words: str, root: Path = ROOT, environ: Mapping[str, str] | None = None) -> str:
    """Run Python to its end with the package ``broker`` of ``root``. Returns: what it printed."""
    inherited = {name: value for name, value in os.environ.items() if name not in (PURE, "PYTEST_ADDOPTS")}
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=100, cwd=root, check=False,
                          env={**inherited, "PYTHONPATH": str(root), **(environ or {})})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def files_of_modules(root: Path = ROOT, environ: Mapping[str, str] | None = None) -> set[str]:
    """Return the ends of the names of the files that the modules of a build are imported from."""
    modules = [f"broker.{module}" for module in MODULES]
    code = f"import importlib\nfor name in {modules!r}: print(importlib.import_module(name).__file__)"
    return {Path(line).suffix for line in python("-c", code, root=root, environ=environ).splitlines()}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the checkout, with its build if there is one."""
    shutil.copytree(ROOT / "broker", tmp_path / "checkout" / "broker", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "compile_modules.py", tmp_path / "checkout")
    return tmp_path / "checkout"


@needs_build
def test_the_build_is_used_unless_the_environment_says_pure() -> None:
    assert files_of_modules() == {".so"}
    assert files_of_modules(environ={PURE: "1"}) == {".py"}
    assert files_of_modules(environ={PURE: "0"}) == {".so"}


@needs_build
def test_an_edited_source_is_used_instead_of_its_build(checkout: Path) -> None:
    """No module of the build is used then, since the modules depend on each other."""
    assert files_of_modules(checkout) == {".so"}
    with (checkout / "broker" / "protocol" / "parser.py").open("a") as file:
        file.write("# edited\n")
    assert files_of_modules(checkout) == {".py"}


@needs_build
@pytest.mark.skipif(not broker.COMPILED, reason="these tests run with the sources already")
def test_the_sources_pass_the_same_tests() -> None:
    """The sources are the reference; the whole run tests the build."""
    printed = python("-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0", *TESTS, environ={PURE: "1"})
    assert " passed" in printed
    assert "failed" not in printed


@pytest.mark.parametrize("environ, reason", [
    ({"PATH": "", "CC": ""}, "there is no C compiler"), ({"CC": "no-such-compiler"}, "there is no C compiler")])
def test_a_machine_without_a_compiler_runs_the_sources(checkout: Path, environ: dict[str, str], reason: str) -> None:
    """Compiling says in one line why there is no build, and does not fail; the command names the sources."""
    for build in (checkout / "broker" / "compiled").glob("*.*-*"):
        shutil.rmtree(build)
    own = {**environ, "XDG_CACHE_HOME": str(checkout)}
    [line] = python("compile_modules.py", root=checkout, environ=own).splitlines()
    assert line.startswith("The broker will run as pure Python")
    assert reason in line
    assert "hot path: pure Python" in python("-m", "broker", "--version", root=checkout, environ=own)


@pytest.mark.skipif(not Path(sysconfig.get_path("include"), "Python.h").is_file(), reason="Python.h is not installed")
def test_a_failed_build_is_not_tried_again(checkout: Path) -> None:
    """One attempt is made for the same sources. Its error is kept beside them, and they run as they are."""
    for build in (checkout / "broker" / "compiled").glob("*.*-*"):
        shutil.rmtree(build)
    (checkout / "mypyc").mkdir()
    (checkout / "mypyc" / "__init__.py").touch()
    (checkout / "mypyc" / "build.py").write_text('raise SystemExit("this cannot be compiled")\n')
    (checkout / "setuptools.py").touch()
    own = {"XDG_CACHE_HOME": str(checkout), "CC": sys.executable}
    [first, second] = python("compile_modules.py", root=checkout, environ=own).splitlines()
    assert first.startswith("Compiling the hottest modules")
    assert second.startswith("The broker will run as pure Python")
    assert "this cannot be compiled" in second
    [failed] = (checkout / "broker" / "compiled").glob("*.failed")
    [line] = python("compile_modules.py", root=checkout, environ=own).splitlines()
    assert str(failed) in line
    assert files_of_modules(checkout) == {".py"}


def test_no_source_extends_a_compiled_class() -> None:
    """A class that is not compiled cannot extend one that is: its module must be in the list, too. Protocols can."""
    compiled = {f"broker.{module}" for module in MODULES}
    found = []
    for path in sorted((ROOT / "broker").rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        text = path.read_text()
        if not any(module in text for module in compiled):
            continue
        tree = ast.parse(text)
        imported = {alias.asname or alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)
                    and node.module in compiled for alias in node.names}
        if name not in compiled:
            found += [f"{name}.{node.name}" for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
                      for bases in ([ast.unparse(base).partition("[")[0] for base in node.bases],)
                      if imported.intersection(bases) and "Protocol" not in bases]
    assert found == []


@pytest.mark.parametrize("pure", [True, pytest.param(False, marks=needs_build)])
async def test_monitoring_says_which_modules_run(pure: bool) -> None:
    async with BrokerProcess(environ={PURE: str(int(pure))}) as server:
        assert (await server.monitor("/varz"))["jetblock"]["compiled"] is not pure
