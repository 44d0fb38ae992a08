"""The scripts of docs/tour, which the README runs, as modules for tests."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

__all__ = ["tour"]

_FOLDER = Path(__file__).resolve().parent.parent / "docs" / "tour"


def tour(name: str) -> ModuleType:
    """Load docs/tour/NAME.py, under the name by which the scripts import one another."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, _FOLDER / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]
