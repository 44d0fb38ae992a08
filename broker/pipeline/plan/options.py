"""The options of the source, parsed and checked on the driver before anything is read.

    OPTIONS     each option's name, purpose and parser
    Options     the values

Spark passes names in lower case and values as text. Errors are reported together where possible: unknown options with
the nearest valid name, wrong values with the allowed ones.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from typing import Any, Final, NamedTuple

from broker.base.store_url import parse_store_url
from broker.pipeline.errors import BadOption
from broker.pipeline.plan.selection import NS_MAX, SEQ_MAX, Selection, time_ns
from broker.pipeline.plan.snapshot import AsOf, names

__all__ = ["OPTIONS", "STORE_NEEDED", "VIEWS", "Option", "Options", "as_texts", "filled", "flag", "number", "one_of",
           "read_values", "spelled", "store_url"]

VIEWS: Final = ("messages", "subjects", "blocks", "streams", "consumers", "kv", "objects")
HEADERS: Final = ("raw", "parsed")
_VIEW_SUBJECTS: Final[Mapping[str, tuple[bytes, ...]]] = {"kv": (b"$KV.*.>",), "objects": (b"$O.*.M.*",)}


@dataclass(frozen=True)
class Options:
    """Values of the options. Each field is an option's name in lower case, with its default."""

    store: str
    """A URL that means the same in every process."""
    account: str = "$G"
    stream: str = ""
    view: str = "messages"
    subjects: tuple[str, ...] = ()
    startseq: int | None = None
    endseq: int | None = None
    starttime: int | None = None
    """Nanoseconds, inclusive."""
    endtime: int | None = None
    """Nanoseconds, exclusive."""
    asof: str | None = None
    headers: str = "raw"
    targetpartitionbytes: int = 64 << 20
    prefetch: int = 3
    pushdown: bool = False
    """Off by default, for the reason in ``spark.batch``."""
    startingoffsets: str = "earliest"
    """The text given; ``offsets.Start`` parses it."""
    maxmessagespertrigger: int | None = None
    maxbytespertrigger: int | None = None
    failondataloss: bool = True
    history: str = "latest"

    @classmethod
    def parse(cls, given: Mapping[str, str], *, streaming: bool = False) -> Options:
        """Parse ``given`` for a batch or a streaming query.

        Raises: BadOption, naming every unknown option with the nearest valid one; or every option that has no meaning
            for the view or kind of query, and every wrong value with the allowed ones. An empty range is no error,
            since bounds are often computed.
        """
        low = spelled(given, OPTIONS)
        values, wrong = read_values(low, OPTIONS)
        if not low:
            raise BadOption(f"there are no options, not even store; {_NO_TABLES}")
        if "store" not in low:
            wrong.append(STORE_NEEDED)
        view = values.get("view", "messages")
        if "view" in values or "view" not in low:
            wrong += _out_of_place(low, view, streaming)
            if view not in ("streams", "consumers"):
                if "stream" not in low:
                    wrong.append("option stream is needed: a stream's name, several separated by commas, * as a "
                                 "wildcard")
            else:
                values.setdefault("stream", "*")
        if wrong:
            raise BadOption("; ".join(wrong))
        return cls(**values)

    def selection(self) -> Selection:
        """Return the selection by subjects, sequences and times."""
        subjects = _VIEW_SUBJECTS.get(self.view) or tuple(subject.encode() for subject in self.subjects)
        return Selection(
            subjects=subjects or None, first_seq=self.startseq or 1,
            last_seq=self.endseq, first_ns=self.starttime, last_ns=None if self.endtime is None else self.endtime - 1,
            view=self.view)


STORE_NEEDED: Final = "option store is needed: file:///DIR or s3://BUCKET/PREFIX"
_NO_TABLES: Final = ("Spark keeps the options of CREATE TABLE … USING jetblock from the source: write CREATE TEMPORARY "
                     "VIEW … USING jetblock OPTIONS (store '…', stream '…'); or add the jar, with which tables persist "
                     "(jetblock pipeline jar)")


def as_texts(given: Mapping[str, Any]) -> dict[str, str]:
    """Convert options of a Python program to the form in which Spark passes them: names in lower case, values as text.

    None leaves an option out; the items of a list or set are separated by commas.
    """
    return {name.lower(): _as_text(value) for name, value in given.items() if value is not None}


def _as_text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime):
        return value.isoformat()
    return ",".join(value) if isinstance(value, (list, tuple, set, frozenset)) else str(value)


def spelled(given: Mapping[str, str], options: Mapping[str, Option]) -> dict[str, str]:
    """Return the options by name in lower case; ``path``, which ``load(…)`` and ``save(…)`` set, is the store.

    Raises: BadOption for options that are not in ``options``.
    """
    low = {name.lower(): value for name, value in given.items()}
    if (path := low.pop("path", None)) is not None:
        if "store" in low and low["store"] != path:
            raise BadOption(f"option store={_short(low['store'])} and the path {_short(path)} name two stores: leave "
                            "one out")
        low["store"] = path
    if "provider" in low:  # a property that Spark sets only for tables
        raise BadOption(_NO_TABLES)
    unknown = [name for name in given if name.lower() not in options and name.lower() != "path"]
    if unknown:
        raise BadOption("; ".join(_unknown(name, options) for name in unknown) + "; there are: "
                        + ", ".join(option.name for option in options.values()))
    return low


def _unknown(name: str, options: Mapping[str, Option]) -> str:
    near = get_close_matches(name.lower(), options, 1, 0.5)
    # An option with a word added scores low by letters alone.
    near = near or [one for one in options if one in name.lower() or (len(name) > 3 and name.lower() in one)][:1]
    return f"no option {_short(name)}" + (f": did you mean {options[near[0]].name}?" if near else "")


def read_values(low: Mapping[str, str], options: Mapping[str, Option]) -> tuple[dict[str, Any], list[str]]:
    """Return the values of ``spelled`` options by name, and an error for each wrong value."""
    values: dict[str, Any] = {}
    wrong: list[str] = []
    for name, text in low.items():
        try:
            values[name] = options[name].read(text)
        except ValueError as error:
            wrong.append(f"option {options[name].name}={_short(text)}: {error}")
    return values, wrong


def _out_of_place(low: Mapping[str, str], view: str, streaming: bool) -> list[str]:
    """Return errors for options that have no meaning here: if they were ignored, users would rely on them."""
    wrong = []
    if streaming and view != "messages":
        wrong.append(f"option view={view}: a streaming query reads messages; read this view with spark.read")
    for name in low:
        option = OPTIONS[name]
        if view not in option.views:
            wrong.append(f"option {option.name} has no meaning for view={view}, only for {' and '.join(option.views)}: "
                         f"leave it out")
        elif streaming and option.kind == "batch":
            wrong.append(f"option {option.name} is for batch queries: {option.instead}")
        elif not streaming and option.kind == "stream":
            wrong.append(f"option {option.name} is for streaming queries: {option.instead}")
    return wrong


def _short(text: str) -> str:
    """Return a value for an error text: shortened, and without the credentials before an ``@`` in a URL."""
    scheme, colon, rest = text.partition("://")
    if colon and "@" in rest:
        text = f"{scheme}://…@{rest.rpartition('@')[2]}"
    return repr(text) if len(text) <= 80 else repr(text[:77] + "…")


# ---- values: each function parses a text, or returns one that does; it raises ValueError naming what is allowed

def store_url(text: str) -> str:
    word = text.strip()
    if word.startswith("file:/") and not word.startswith("file://"):
        word = f"file://{word[5:]}"  # as Hadoop writes it
    if word.startswith(("s3a://", "s3n://")):
        raise ValueError(f"write s3://{word[6:].rpartition('@')[2]}")
    if "://" not in word and word.startswith("/"):
        raise ValueError(f"write file://{word}")
    scheme, where, _ = parse_store_url(word)
    if scheme == "memory":
        raise ValueError("a store in memory is within one process: write file:///DIR or s3://BUCKET/PREFIX")
    # Executors have working directories of their own.
    return f"file://{os.path.abspath(where)}" if scheme == "file" else word


def filled(what: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if not text.strip():
            raise ValueError(f"write {what}")
        return text.strip()
    return read


def _stream(text: str) -> str:
    if not names(text):
        raise ValueError("write a stream's name, several separated by commas, * as a wildcard")
    if ">" in text:
        raise ValueError("stream names contain no >: * stands for any characters")
    return text.strip()


def one_of(*allowed: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        word = text.strip().lower()
        if word not in allowed:
            near = get_close_matches(word, allowed, 1, 0.5)
            raise ValueError(f"allowed are {', '.join(allowed)}" + (f"; did you mean {near[0]}?" if near else ""))
        return word
    return read


def _subjects(text: str) -> tuple[str, ...]:
    from broker.protocol.subject import is_valid  # ``jetblock.spark`` is imported by programs that need no subjects

    patterns = tuple(names(text))
    if not patterns:
        raise ValueError("write NATS subjects separated by commas, as orders.*.created,alarm.>")
    for pattern in patterns:
        if not is_valid(pattern.encode()):
            raise ValueError(f"{pattern!r} is no NATS subject: tokens separated by dots, none of them empty, no white "
                             f"space, > only at the end")
    return patterns


def number(least: int, most: int, what: str) -> Callable[[str], int]:
    def read(text: str) -> int:
        word = text.strip()
        if not (word.isascii() and word.isdigit()) or not least <= int(word) <= most:
            raise ValueError(f"write {what}, from {least} to {most}")
        return int(word)
    return read


_SIZE: Final = re.compile(r"(\d{1,18})\s*(?:([kmgt])i?)?b?", re.ASCII | re.IGNORECASE)
_UNITS: Final = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}


def _size(text: str) -> int:
    match = _SIZE.fullmatch(text.strip())
    size = int(match[1]) << _UNITS[(match[2] or "").lower()] if match is not None else 0
    if not 1 <= size <= NS_MAX:
        raise ValueError("write a size from 1 byte up, as 64m, 1g, 512k or 1000000")
    return size


def flag(text: str) -> bool:
    word = text.strip().lower()
    if word not in ("true", "false"):
        raise ValueError("allowed are true and false")
    return word == "true"


def _as_of(text: str) -> str:
    try:
        AsOf.parse(text)
    except BadOption as error:
        raise ValueError(str(error).partition(": ")[2]) from None
    return text.strip()


class Option(NamedTuple):
    """An option. name: as documented; Spark ignores its case. kind: ``batch`` or ``stream`` if it is for such queries
    only. instead: what the other kind of query uses."""

    name: str
    about: str
    read: Callable[[str], Any]
    views: tuple[str, ...] = VIEWS
    kind: str = "both"
    instead: str = ""


_READ: Final = ("messages", "subjects")
_BLOCKS: Final = (*_READ, "blocks")
_BUCKETS: Final = ("kv", "objects")
_STARTS: Final = "a streaming query begins at startingOffsets and has no end"
_ONLY_STREAMS: Final = "leave it out, or use spark.readStream"

OPTIONS: Final[Mapping[str, Option]] = {option.name.lower(): option for option in (
    Option("store", "URL of the store: file:///DIR or s3://BUCKET/PREFIX; load(URL) sets it too", store_url),
    Option("account", "account whose streams are read; * as a wildcard", filled("an account's name, or * for all")),
    Option("stream", "stream to read; several separated by commas, * as a wildcard", _stream),
    Option("view", f"what the rows are: {', '.join(VIEWS)}", one_of(*VIEWS)),
    Option("subjects", "NATS subjects separated by commas, * and > as wildcards; one must match", _subjects, _READ),
    Option("startSeq", "first sequence", number(1, SEQ_MAX, "a sequence"), _BLOCKS, "batch", _STARTS),
    Option("endSeq", "last sequence", number(0, SEQ_MAX, "a sequence"), _BLOCKS, "batch", _STARTS),
    Option("startTime", "messages of this time and later: ISO 8601, or ns", time_ns, _BLOCKS, "batch", _STARTS),
    Option("endTime", "messages before this time: ISO 8601, or ns", time_ns, _BLOCKS, "batch", _STARTS),
    Option("asOf", "the store as of a position of the log; or messages up to a sequence (seq:N) or a time", _as_of,
           (*_BLOCKS, *_BUCKETS), "batch", _STARTS),
    Option("headers", "column headers as bytes (raw) or as an array of name and value (parsed)", one_of(*HEADERS),
           ("messages",)),
    Option("targetPartitionBytes", "bytes that one task reads, about: 64m", _size, (*_BLOCKS, *_BUCKETS)),
    Option("prefetch", "concurrent reads of a task", number(1, 64, "a number of reads"),
           (*_BLOCKS, *_BUCKETS)),
    Option("pushdown",
           "whether Spark's filters narrow what is read (true, false); safe only if each load is for one scan", flag),
    Option("startingOffsets", "where a new query begins: earliest, latest, a sequence, a time, or offsets as JSON",
           filled("earliest, latest, a sequence, a time, or offsets as JSON"), ("messages",), "stream",
           "a batch query has startSeq and startTime"),
    Option("maxMessagesPerTrigger", "messages in one micro-batch, at most", number(1, SEQ_MAX, "a number of messages"),
           ("messages",), "stream", _ONLY_STREAMS),
    Option("maxBytesPerTrigger", "bytes in one micro-batch, at most: 256m", _size, ("messages",), "stream",
           _ONLY_STREAMS),
    Option("failOnDataLoss", "whether a query fails when messages were removed before it read them (true, false)",
           flag, (*_READ, *_BUCKETS)),
    Option("history", "entries of a key: latest, or all that the bucket has", one_of("latest", "all"), ("kv",)),
)}
"""Options by name in lower case, in the order of the docs."""
