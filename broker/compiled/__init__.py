"""Chooses between the sources of the hottest modules and a build of them, which mypyc compiles to machine code.

    broker/protocol/parser.py                             a source: the reference, and used if there is no build
    broker/compiled/<digest>.<ABI>/protocol.parser.<ABI>.so
                                                          the same module in a build; compile_modules.py makes it

A build is used only if it was made from exactly the sources beside it and for this interpreter: its name has their
digest. So an edited module never runs in an older form. ``JETBLOCK_PURE=1`` in the environment selects the sources.

Owns: which modules are compiled, the names of builds, and the import of compiled modules. Does not own: compiling.

Source: docs/adr/0018-compiled-modules.md.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from importlib.util import source_hash, spec_from_file_location
from types import ModuleType
from typing import Final

__all__ = ["FOLDER", "MODULES", "PURE", "build_name", "library_name", "use_build"]

MODULES: Final = (
    "protocol.run", "protocol.framing", "protocol.parser", "protocol.leaf.parser", "protocol.encoder",
    "protocol.subject",
    "server.routing.sublist", "server.routing.subscription", "server.routing.ack_subjects",
    "server.routing.queue_group", "server.routing.routes", "server.routing.router", "server.connection.subscribing",
    "storage.log.open_block", "streaming.wire.encoding")
"""The modules of a build, by name relative to the package: the code that runs once for each message or subscription.
Classes with weak references cannot be compiled, so ``server.routing.route`` is not among them."""

PURE: Final = "JETBLOCK_PURE"
"""The environment variable that selects the sources, unless it is empty or 0."""

FOLDER: Final = os.path.dirname(os.path.abspath(__file__))
"""The folder that contains the builds, each in a folder of its own."""

SUFFIX: Final = EXTENSION_SUFFIXES[0]
"""The end of the name of each file that this interpreter can load, such as ``.cpython-311-x86_64-linux-gnu.so``."""


def use_build() -> bool:
    """Import the compiled modules from now on, if there is a build of the sources. Returns: whether there is one."""
    if os.environ.get(PURE, "0") not in ("", "0"):
        return False
    try:
        # Most installations without a build end here, before any source is read.
        if not any(name.endswith(SUFFIX.removesuffix(".so")) for name in os.listdir(FOLDER)):
            return False
        name = build_name(os.path.dirname(FOLDER))
    except OSError:  # the package is in a zip, as Spark's workers have it, or has no sources
        return False
    build = os.path.join(FOLDER, name)
    if not os.path.isdir(build):
        return False
    package = __name__.rpartition(".")[0]
    files = {f"{package}.{module}": os.path.join(build, module + SUFFIX) for module in MODULES}
    library = library_name(name)
    sys.meta_path.insert(0, _Finder({**files, library: os.path.join(build, library + SUFFIX)}))
    return True


def build_name(package: str, suffix: str = SUFFIX) -> str:
    """Return the name of the build of the sources in the folder ``package``, for the interpreter with ``suffix``.

    Raises: OSError if a source is missing.
    """
    sources = b""
    for module in MODULES:
        with open(os.path.join(package, *module.split(".")) + ".py", "rb") as file:
            sources += file.read()
    return source_hash(sources).hex() + suffix.removesuffix(".so")


def library_name(build: str) -> str:
    """Return the name of the module that has the machine code of a whole build; the others only refer to it."""
    return f"jetblock_{build.partition('.')[0]}__mypyc"


class _Finder:
    """Finds the modules of a build by name."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self._files = files

    def find_spec(self, name: str, path: Sequence[str] | None = None,
                  target: ModuleType | None = None) -> ModuleSpec | None:
        file = self._files.get(name)
        return None if file is None else spec_from_file_location(name, file)
