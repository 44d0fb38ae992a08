"""The options of the sink, parsed and checked on the driver before anything is read or put.

    WRITE_OPTIONS   each option's name, purpose and parser
    WriteOptions    the values
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from broker.base.gotime import parse_duration
from broker.pipeline.errors import BadOption
from broker.pipeline.plan.options import (
    STORE_NEEDED,
    Option,
    filled,
    flag,
    number,
    one_of,
    read_values,
    spelled,
    store_url,
)
from broker.storage.staging.writer import Version

__all__ = ["WRITE_OPTIONS", "WriteOptions"]

_VERSION_MAX: Final = (1 << 63) - 1
_SPARKS: Final = frozenset(("checkpointlocation", "queryname"))
"""Spark's own options of a streaming query, which it passes to the sink, too."""


@dataclass(frozen=True)
class WriteOptions:
    """Values of the options. Each field is an option's name in lower case, with its default."""

    store: str
    stream: str
    account: str = "$G"
    nats: str = field(default="", repr=False)
    natscreds: str = ""
    txnappid: str = ""
    txnversion: int | None = None
    waitforadoption: int = 300_000_000_000
    """Nanoseconds."""
    times: str = "refuse"
    actingheaders: str = "refuse"
    splitcommits: bool = False
    createstream: Mapping[str, Any] | None = None

    @classmethod
    def parse(cls, given: Mapping[str, str], *, streaming: bool = False) -> WriteOptions:
        """Parse ``given`` for a batch or a streaming write.

        Raises: BadOption, naming every unknown option with the nearest valid one; or every missing option, every one
            that lacks another or has no meaning here, and every wrong value with the allowed ones.
        """
        low = spelled({name: text for name, text in given.items() if not streaming or name.lower() not in _SPARKS},
                      WRITE_OPTIONS)
        values, wrong = read_values(low, WRITE_OPTIONS)
        if "store" not in low:
            wrong.append(STORE_NEEDED)
        if "stream" not in low:
            wrong.append("option stream is needed: the name of the stream to which the rows are appended")
        if streaming and "txnversion" in low:
            wrong.append("option txnVersion is for batch writes: in a streaming query it is the number of the "
                         "micro-batch; leave it out")
        if not streaming and ("txnappid" in low) != ("txnversion" in low):
            wrong.append("options txnAppId and txnVersion need each other: give both, or neither")
        for name in ("natscreds", "createstream"):
            if name in low and "nats" not in low:
                wrong.append(f"option {WRITE_OPTIONS[name].name} needs option nats, the broker's URL")
        if wrong:
            raise BadOption("; ".join(wrong))
        options = cls(**values)
        if options.createstream is not None and options.createstream.get("name", options.stream) != options.stream:
            raise BadOption(f"option createStream: its name is {options.createstream['name']!r}, and option stream is "
                            f"{options.stream!r}: leave the name out")
        return options

    @property
    def version(self) -> Version | None:
        """The transaction of a batch write; None if the options name none."""
        return None if self.txnversion is None else Version(self.txnappid, self.txnversion)


def _stream(text: str) -> str:
    name = text.strip()
    if not name or any(c in name for c in ".*> \t\r\n/\\"):
        raise ValueError("write the name of one stream: no dots, wildcards, slashes or white space")
    return name


def _writer(text: str) -> str:
    if (why := Version(text, 0).flaw()) is not None:
        raise ValueError(why)
    return text


def _nats(text: str) -> str:
    url = text.strip()
    if not url.partition("://")[2]:
        raise ValueError("write the broker's URL, nats://HOST:4222")
    return url


def _wait(text: str) -> int:
    try:
        wait_ns = parse_duration(text.strip())
    except ValueError:
        wait_ns = -1
    if wait_ns < 0:
        raise ValueError("write a duration, as 30s, 5m or 0")
    return wait_ns


def _config(text: str) -> dict[str, Any]:
    try:
        config = json.loads(text)
    except ValueError as error:
        raise ValueError(f"write the stream's configuration as JSON ({error})") from None
    if not isinstance(config, dict):
        raise ValueError('write the stream\'s configuration as JSON, as {"subjects": ["orders.>"]}')
    return config


WRITE_OPTIONS: Final[Mapping[str, Option]] = {option.name.lower(): option for option in (
    Option("store", "URL of the store: file:///DIR or s3://BUCKET/PREFIX; save(URL) sets it too", store_url),
    Option("account", "account of the stream", filled("an account's name")),
    Option("stream", "stream to which the rows are appended; one", _stream),
    Option("nats", "URL of the broker: the driver asks it to adopt at once; without it, the broker finds the request "
           "in the store within a minute", _nats),
    Option("natsCreds", "file of a NATS user's credentials, on the driver", filled("the path of a credentials file")),
    Option("txnAppId", "name of the writer, with txnVersion: the stream stores each version once, and none below the "
           "last one; in a streaming query by default the query's ID", _writer),
    Option("txnVersion", "version of this write; ascends; in a streaming query the micro-batch's number",
           number(0, _VERSION_MAX, "a version"), kind="batch"),
    Option("waitForAdoption", "time after which the write fails if no broker has adopted it: 5m; 0 returns once the "
           "request is stored", _wait),
    Option("times", "rows with times below an earlier message's, or in the future: refuse the write, change their "
           "times, or ignore the columns ts and ts_ns", one_of("refuse", "raise", "ignore")),
    Option("actingHeaders", "headers that ask the server for something (Nats-TTL, Nats-Rollup, …): refuse the write, "
           "strip them, or apply Nats-TTL and Nats-Rollup as for published messages",
           one_of("refuse", "strip", "apply")),
    Option("splitCommits", "whether a write that is too large for one request becomes several, each all or nothing "
           "(true, false)", flag),
    Option("createStream", "configuration as JSON of the stream to create if there is none; needs nats", _config),
)}
"""Options by name in lower case, in the order of the docs."""
