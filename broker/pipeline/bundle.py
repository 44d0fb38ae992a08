"""The file that brings this package to Spark's workers: ``spark-submit --py-files``, ``sc.addPyFile``, ``addArtifacts``.

It holds ``broker.pipeline``, what that imports from the rest of ``broker``, and ``pyspark_jetblock``: Python source alone,
so one file serves every platform. Workers also need msgpack, zstandard, numpy, pyarrow and obstore. Call ``session.register``
then: Spark finds by itself only what is installed.
"""

from __future__ import annotations

import ast
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import broker

__all__ = ["modules", "write_zip"]

_PACKAGE = "broker"
_ROOT = Path(broker.__file__).parent.parent
_AT_HOME = ("bundle", "cli")
"""What is for a shell beside an installed jetblock."""
_TIME = (1980, 1, 1, 0, 0, 0)
"""The earliest that a zip file can say; the same for all, so that equal sources make equal bytes."""


def write_zip(out: IO[bytes]) -> int:
    """Write the zip; returns how many modules are in it.

    The bytes depend on the sources alone. For that the entries are not compressed, as one zlib's output is not another's;
    workers start the faster for it.
    """
    found = {path.relative_to(_ROOT).as_posix(): path for path in modules().values()}
    found |= {"pyspark_jetblock/__init__.py": _autoload()}
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        for name, path in sorted(found.items()):
            entry = zipfile.ZipInfo(name, _TIME)
            entry.create_system = 3
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, path.read_bytes())
    return len(found)


def modules() -> dict[str, Path]:
    """The modules of ``broker`` that its pipeline imports, with itself, by name.

    They are found by reading import statements, also those inside functions, and not by importing: that would find
    only what this machine happens to take.
    """
    found: dict[str, Path] = {}
    waiting = [f"{_PACKAGE}.pipeline.{path.stem}".removesuffix(".__init__") for path in (_ROOT / _PACKAGE / "pipeline").glob("*.py")
               if path.stem not in _AT_HOME]
    while waiting:
        name = waiting.pop()
        path = _path(name)
        if path is None or name in found:
            continue
        found[name] = path
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        waiting += _imported(ast.parse(path.read_bytes()), package)
        if "." in name:
            waiting.append(name.rpartition(".")[0])
    return found


def _path(name: str) -> Path | None:
    base = _ROOT.joinpath(*name.split("."))
    return next((path for path in (base / "__init__.py", base.with_suffix(".py")) if path.is_file()), None)


def _autoload() -> Path:
    """``pyspark_jetblock``: at the top where jetblock was installed, in its place in a checkout."""
    places = (_ROOT / _PACKAGE / "pipeline" / "autoload", _ROOT)
    return next(path for place in places if (path := place / "pyspark_jetblock" / "__init__.py").is_file())


def _imported(tree: ast.AST, package: str) -> Iterator[str]:
    """What may be modules of ours in the import statements of a module of ``package``; those for type checkers left out."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == _PACKAGE)
        elif isinstance(node, ast.ImportFrom):
            above = package.rsplit(".", node.level - 1)[0] if node.level else ""
            source = ".".join(filter(None, (above, node.module)))
            if source.split(".")[0] == _PACKAGE:
                yield source
                yield from (f"{source}.{alias.name}" for alias in node.names)
        yield from _imported(node, package)
