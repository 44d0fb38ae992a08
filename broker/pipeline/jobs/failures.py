"""Errors of Spark as the errors of a job: one line that names the remedy, where the reason is known."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from broker.pipeline import errors
from broker.pipeline.errors import PipelineError

__all__ = ["plain_failures", "summary"]

_OURS: Final = re.compile(r"\bpipeline\.(?:spark\.)?errors\.(\w+): ([^\n]+)")
_NO_FORMAT: Final = re.compile(r"Failed to find the data source: (\w+)")
_MISFIT: Final = re.compile(r"exception: '[\w.\[\]$]+ ([\w.$]+\.[\w<>$]+)\(|"
                            r"\b(?:NoSuchMethodError|NoClassDefFoundError|AbstractMethodError|NoSuchFieldError): "
                            r"([^\s(]+(?: [^\s(]+)?)")
"""A jar that was compiled for another Spark: Java names the method that is missing, as ``'void a.B.<init>(…)'``."""
_SHORT: Final = 500


@contextmanager
def plain_failures() -> Iterator[None]:
    """Raise PipelineError in place of Spark's errors whose reason is known; other errors pass."""
    try:
        yield
    except Exception as error:
        # Spark's own errors and those of its gateway, py4j, have no common base.
        plain = _plain(str(error)) if type(error).__module__.startswith(("pyspark.", "py4j.")) else None
        if plain is None:
            raise
        raise plain from error


def summary(error: BaseException) -> str:
    """Return the first line of an error's text, which may be followed by stack traces."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    first = next((line for line in lines if not line.startswith(("An error occurred while calling", "Traceback"))), "")
    return f"{type(error).__name__}: {first[:_SHORT]}"


def _plain(text: str) -> PipelineError | None:
    """Return the error that the text of a Spark error reports, if it is known."""
    if (ours := _OURS.search(text)) is not None:
        kind = getattr(errors, ours[1], PipelineError)
        return kind(ours[2]) if issubclass(kind, PipelineError) else PipelineError(ours[2])
    if (missing := _NO_FORMAT.search(text)) is not None:
        return PipelineError(f"Spark has no data source {missing[1]!r}: add its jar for this version of Spark, with "
                             "the setting spark.jars or spark.jars.packages")
    if (misfit := _MISFIT.search(text)) is not None:
        return PipelineError(f"a jar was made for another version of Spark, because this one has no "
                             f"{misfit[1] or misfit[2]}: add the jar for this version")
    if "CONCURRENT_STREAM_LOG_UPDATE" in text:
        return PipelineError("another run of this job wrote the same batch first: wait for its end, and run it again")
    return None
