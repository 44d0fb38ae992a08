"""The options of the source, parsed and checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from broker.pipeline.errors import BadOption
from broker.pipeline.selection import Selection

__all__ = ["VIEWS", "Options"]

VIEWS = ("messages", "subjects", "blocks", "streams", "consumers")


@dataclass(frozen=True)
class Options:
    """The names are the options', which Spark hands over in lower case. Bounds are inclusive."""

    store: str
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
    pushdown: bool | None = None
    startingoffsets: str = "earliest"
    """``earliest``, ``latest``, ``seq:N`` or ``time:NS``."""
    maxmessagespertrigger: int | None = None
    maxbytespertrigger: int | None = None
    failondataloss: bool = True

    @classmethod
    def parse(cls, given: Mapping[str, str], *, streaming: bool = False) -> Options:
        """Raises: BadOption, naming every unknown option with the nearest valid one, or a value and what is allowed."""
        low = {key.lower(): value for key, value in given.items()}
        if "path" in low:
            low["store"] = low.pop("path")
        if "store" not in low:
            raise BadOption("option 'store' is needed: file://DIR or s3://BUCKET/PREFIX")
        return cls(store=low["store"], stream=low.get("stream", ""), view=low.get("view", "messages"))

    def selection(self) -> Selection:
        """What subjects, sequences and times ask for."""
        return Selection(subjects=tuple(s.encode() for s in self.subjects) or None, first_seq=self.startseq or 1,
                         last_seq=self.endseq, first_ns=self.starttime,
                         last_ns=None if self.endtime is None else self.endtime - 1)
