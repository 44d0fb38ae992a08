"""Calls from Spark: errors reach the user as one plain line, and a Python worker is prepared for many tasks."""

from __future__ import annotations

import functools
import gc
import os
import platform
import sys
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

from broker.pipeline.errors import PipelineError

__all__ = ["MissingModule", "freeze_imports", "plainly", "plainly_each"]

_P = ParamSpec("_P")
_R = TypeVar("_R")

_NEEDED = frozenset({"msgpack", "zstandard", "numpy", "pyarrow", "obstore"})
_frozen = False


class MissingModule(PipelineError):
    """A Python module needed for reading is missing, on the driver or on an executor."""


def plainly(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Wrap ``function`` so that its PipelineErrors lose the frames and causes that Spark would print above them."""
    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return function(*args, **kwargs)
        except PipelineError as error:
            plain = error
        except ModuleNotFoundError as error:
            plain = _missing(error)
        raise _bare(plain) from None

    return call


def plainly_each(rows: Iterator[_R]) -> Iterator[_R]:
    """Iterate over ``rows``, with errors treated as by ``plainly``. Closing the iterator closes ``rows``."""
    try:
        yield from rows
        return
    except PipelineError as error:
        plain = error
    except ModuleNotFoundError as error:
        plain = _missing(error)
    raise _bare(plain) from None


def freeze_imports() -> None:
    """Hide imported modules from the garbage collector, once in each worker.

    Spark's worker collects garbage after every task. With the objects of numpy and pyarrow that takes longer than a
    small
    task: 42 ms of CPU time instead of 15 ms, as measured.
    """
    global _frozen
    if not _frozen:
        _frozen = True
        gc.collect()
        gc.freeze()


def _bare(error: PipelineError) -> PipelineError:
    """Return ``error`` without its frames. In a worker of Spark, also let the report to the driver be without frames.

    Spark adds the frames of the worker to an error that ends it, unless the second variable is set. Spark sets the
    first one in workers only. A driver must not set the second one: its workers would hide the frames of all errors.
    """
    if os.environ.get("SPARK_PYTHON_RUNTIME") == "PYTHON_WORKER":
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
    return error.with_traceback(None)


def _missing(error: ModuleNotFoundError) -> PipelineError:
    if error.name is None or error.name.partition(".")[0] not in _NEEDED:
        raise error
    return MissingModule(f"{platform.node()}: {sys.executable} has no module {error.name!r}, which reading jetblock's "
                         f"streams needs: install jetblock with its extra [spark] for the Python of the driver and "
                         f"of all executors, or name another with PYSPARK_PYTHON")
