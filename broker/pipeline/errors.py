"""The errors of a query, sorted by what its author does next.

    BadOption     an option is unknown, malformed, or contradicts another: correct the query
    NoStore       there is no store at this URL: correct it, or start a broker on it
    NoStream      the store has no such stream: the text lists the streams it has
    Unreachable   the store did not answer, or denied access: check network, endpoint, credentials
    Damaged       bytes differ from what was written: the text names object, section and offset; see ``jetblock
                  inspect``
    Newer         a newer version wrote it: upgrade this reader
    Gone          an object with live messages is missing
    DataLoss      messages were removed before the query read them

Each text names the object or option and the remedy, never a secret. All can be pickled: Spark carries them from a task
to the driver.
"""

from __future__ import annotations

from broker.storage.format.errors import FormatError, VersionUnknown

__all__ = ["BadOption", "Damaged", "DataLoss", "Gone", "Newer", "NoStore", "NoStream", "PipelineError", "Unreachable",
           "from_format_error"]


class PipelineError(Exception):
    """A query cannot continue; ``str()`` names the object or option, and the remedy."""


class BadOption(PipelineError):
    """An option is unknown, has a wrong value, or contradicts another."""


class NoStore(PipelineError):
    """There is no store, or no bucket or directory, at this URL."""


class NoStream(PipelineError):
    """No stream has that name."""


class Unreachable(PipelineError):
    """The store did not answer within its retries, or denied access."""


class Damaged(PipelineError):
    """An object of the store cannot be decoded."""


class Newer(PipelineError):
    """A newer version of jetblock wrote the object."""


class Gone(PipelineError):
    """An object that the newest state names is missing."""


class DataLoss(PipelineError):
    """Messages that the query should return were removed before it read them."""


def from_format_error(error: FormatError, where: str, key: str | None = None) -> PipelineError:
    """Return the error to raise for damage or for a newer version.

    Args: where is the store, or the store and stream. key is the object's key, for an ``error`` that does not name it.
    """
    what = f"{where}: {error}" if key is None or error.name == key else f"{where}: {key}: {error}"
    if isinstance(error, VersionUnknown):
        return Newer(f"{what}: a newer version of jetblock wrote it; upgrade jetblock on the driver and all executors")
    return Damaged(f"{what}: no rows are returned for it; `jetblock inspect --verify` shows what else is damaged; "
                   f"restore the object from a backup, or read around it with startSeq and endSeq")
