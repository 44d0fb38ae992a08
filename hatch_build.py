"""Build hook of hatchling: packs ``broker`` as ``jetblock._broker``. docs/adr/0014-public-package.md has the reasons.

    checkout                                      wheel
    jetblock/                                     jetblock/
    broker/                                       jetblock/_broker/
    broker/pipeline/autoload/pyspark_jetblock/    pyspark_jetblock/

In the wheel, imports of ``broker`` name ``jetblock._broker`` instead. Lines keep their numbers, so tracebacks fit the
sources. An editable install has the folders as they are, and the hook only compiles them: where PYTHONDONTWRITEBYTECODE
is set, as in many images, each start would otherwise compile all modules, which takes 0.3 s. For other installs, pip
compiles.

A wheel is for any platform. With a processor in JETBLOCK_WHEEL, as ``compile_modules.py`` sets it, the wheel is for
Linux on that processor and has the hottest modules in compiled form, too.
"""

from __future__ import annotations

import ast
import compileall
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_PLACES = {"jetblock": "jetblock", "broker": "jetblock/_broker",
           "broker/pipeline/autoload/pyspark_jetblock": "pyspark_jetblock"}
"""Folders of the checkout, and where they are in the wheel."""
_BEFORE, _AFTER = b"from broker", b"from jetblock._broker"
_MODULE_NAME = re.compile(r"broker(\.\w+)+")


class PackBroker(BuildHookInterface):  # type: ignore[type-arg]
    """Called by hatchling for each wheel; ``version`` is "editable" for an install in place."""

    _folder: Path | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root = Path(self.root)
        if version == "editable":
            for name in ("broker", "jetblock"):
                compileall.compile_dir(root / name, quiet=2)
            return
        self._folder = Path(tempfile.mkdtemp(prefix="jetblock-wheel-"))
        for source, place in _PLACES.items():
            ignored = shutil.ignore_patterns("__pycache__", "autoload", "*.cpython-*")
            shutil.copytree(root / source, self._folder / place, ignore=ignored)
        for path in self._folder.rglob("*.py"):
            path.write_bytes(in_wheel(path.read_bytes(), str(path.relative_to(self._folder))))
        if arch := os.environ.get("JETBLOCK_WHEEL"):
            subprocess.run([sys.executable, str(root / "compile_modules.py"), "into", str(self._folder),
                            "jetblock._broker", arch], check=True)
            python = f"cp{sys.version_info.major}{sys.version_info.minor}"
            build_data["pure_python"] = False
            build_data["tag"] = f"{python}-{python}-manylinux_2_17_{arch}"
        build_data["force_include"] = {str(path): path.name for path in self._folder.iterdir()}

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder)


def in_wheel(source: bytes, name: str) -> bytes:
    """Return the source of a module as the wheel has it.

    Raises: ValueError for the two forms that cannot be rewritten: ``import broker.x``, which binds the name ``broker``,
        and a module's name in a string, which has to be a relative name.
    """
    lines = source.splitlines(keepends=True)
    imports = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import) and any(alias.name.split(".")[0] == "broker" for alias in node.names):
            raise ValueError(f"{name}:{node.lineno}: write `from broker import`")
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _MODULE_NAME.fullmatch(node.value):
            raise ValueError(f"{name}:{node.lineno}: write a name relative to __package__ instead of {node.value!r}")
        if isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").split(".")[0] == "broker":
            imports.append((node.lineno - 1, node.col_offset))
    for number, column in sorted(imports, reverse=True):
        before, rest = lines[number][:column], lines[number][column:]
        if not rest.startswith(_BEFORE):
            raise ValueError(f"{name}:{number + 1}: write `from broker` with one space")
        lines[number] = before + _AFTER + rest.removeprefix(_BEFORE)
    return b"".join(lines)
