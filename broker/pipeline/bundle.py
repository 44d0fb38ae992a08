"""The zip that brings this package to Spark's workers: ``spark-submit --py-files``, ``sc.addPyFile``, ``addArtifacts``.

The zip holds ``broker.pipeline``, ``jetblock.spark``, ``jetblock.staging``, the modules of ``broker`` that they import,
and ``pyspark_jetblock``. All of it is Python source, so one file serves every platform. Workers also need msgpack,
zstandard, numpy, pyarrow and obstore. A session that uses the zip calls ``jetblock.spark.register``, since Spark
discovers only installed sources.
"""

from __future__ import annotations

import ast
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

__all__ = ["modules", "write_zip"]

_PACKAGE = __name__.removesuffix(".pipeline.bundle")
"""``broker``, or ``jetblock._broker`` in an installed wheel. Spark pickles classes with their modules' names, so the
driver and the workers need the same one."""
_ROOT = Path(__file__).parents[_PACKAGE.count(".") + 2]
_PUBLIC = ("jetblock.spark", "jetblock.staging")
_NOT_FOR_WORKERS = ("bundle.py", "cli.py", "jar.py", "autoload/*/*.py")
"""The command line and its parts, which run beside an installed jetblock; and ``pyspark_jetblock``, which is added
under its own name."""
_ONLY_INSTALLED = (f"{_PACKAGE}.erasure",)
"""Packages that only an installed jetblock has: the job ``erase`` runs a broker on the driver."""
_TIME = (1980, 1, 1, 0, 0, 0)
"""The time of every entry, the earliest that a zip can hold: equal sources make equal bytes."""


def write_zip(out: IO[bytes]) -> int:
    """Write the zip; returns the number of modules in it.

    The bytes depend on the sources alone: entries are stored uncompressed, since the output of zlib differs between
    versions. Workers start faster, too.
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
    """The modules of the pipeline, the public ones for workers, and those of ``broker`` that they import, by name.

    Found by reading import statements, including those inside functions. Importing instead would find only what this
    machine happens to load.
    """
    # Its names are imported on first use, and workers use none of them.
    found = {"jetblock": _ROOT / "jetblock" / "__init__.py"}
    pipeline = Path(__file__).parent
    left_out = {path for pattern in _NOT_FOR_WORKERS for path in pipeline.glob(pattern)}
    waiting = [".".join(path.relative_to(_ROOT).with_suffix("").parts).removesuffix(".__init__")
               for path in pipeline.rglob("*.py") if path not in left_out]
    waiting += _PUBLIC
    while waiting:
        name = waiting.pop()
        path = _path(name)
        if path is None or name in found or name.startswith(_ONLY_INSTALLED):
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
    """``pyspark_jetblock``: at the top level of an installation, below ``autoload`` in a checkout."""
    places = (Path(__file__).parent / "autoload", _ROOT)
    return next(path for place in places if (path := place / "pyspark_jetblock" / "__init__.py").is_file())


def _imported(tree: ast.AST, package: str) -> Iterator[str]:
    """The names that a module of ``package`` imports from ``broker``, each perhaps a module; not under
    TYPE_CHECKING."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if _is_ours(alias.name))
        elif isinstance(node, ast.ImportFrom):
            above = package.rsplit(".", node.level - 1)[0] if node.level else ""
            source = ".".join(filter(None, (above, node.module)))
            if _is_ours(source):
                yield source
                yield from (f"{source}.{alias.name}" for alias in node.names)
        yield from _imported(node, package)


def _is_ours(name: str) -> bool:
    return f"{name}.".startswith(f"{_PACKAGE}.")
