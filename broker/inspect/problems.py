"""Problems of a store: each names the object, the consequence and the remedy."""

from __future__ import annotations

from typing import Any, NamedTuple

from broker.storage.format.errors import FormatError, VersionUnknown

__all__ = ["DELETE", "NEWER", "NO_LIVE_MESSAGE", "OLDER_START_DAMAGED", "OLDER_START_MISSING", "RESTORE", "UNNEEDED",
           "Problem", "of_error"]

RESTORE = ("put the object's own bytes back from a copy: an older version where the bucket keeps versions, a replica, "
           "a backup")
NEWER = "read it, and run the broker, with the version of jetblock that wrote it or a newer one"
DELETE = "it may be deleted by hand"

NO_LIVE_MESSAGE = "the damaged part holds no live message, and nothing else needs it any more"
OLDER_START_DAMAGED = "the damaged part holds no live message; only a start from an older checkpoint would need it"
OLDER_START_MISSING = "no live message is lost; a start from an older checkpoint may need it"
UNNEEDED = frozenset({NO_LIVE_MESSAGE, OLDER_START_DAMAGED, OLDER_START_MISSING})
"""The consequences of problems that do not affect anything that a broker serves."""


class Problem(NamedTuple):
    """A problem of an object."""

    object: str
    """The object's key."""
    what: str
    """The fault."""
    means: str
    """The consequence."""
    remedy: str
    section: str | None = None
    """The damaged section; None for the whole object."""
    offset: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the row of the report."""
        return self._asdict()

    def __str__(self) -> str:
        place = "" if self.section is None else f": {self.section}"
        if self.offset is not None:
            place += f" at byte {self.offset}"
        return f"{self.object}{place}: {self.what}"


def of_error(key: str, error: FormatError, means: str, remedy: str | None = None) -> Problem:
    """Make a problem of a decoder's error about the object at ``key``."""
    if remedy is None:
        remedy = NEWER if isinstance(error, VersionUnknown) else RESTORE
    return Problem(key, error.why, means, remedy, error.section, error.offset)
