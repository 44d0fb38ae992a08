"""Compile the package on an editable install from a checkout; for other installs, pip compiles it.

Where PYTHONDONTWRITEBYTECODE is set, as in many images, every start would otherwise compile all modules, which takes 0.3 s.
The file has hatchling's default name for a build hook.
"""

from __future__ import annotations

import compileall
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompileInPlace(BuildHookInterface):
    """Called by hatchling for each wheel; ``version`` is "editable" for an install in place."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            compileall.compile_dir(Path(self.root, "broker"), quiet=2)
