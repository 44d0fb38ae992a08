"""What can go wrong with a query, sorted by what its author does next.

    BadOption     an option is unknown, malformed, or contradicts another: correct the query
    NoStore       there is no store at this URL: correct it, or start a broker on it
    NoStream      the store has no such stream: the text names those that are there
    Unreachable   the store did not answer, or refuses us: network, endpoint, credentials
    Damaged       bytes are not what was written: the text names object, section and offset; ``jetblock inspect`` says more
    Newer         a newer version wrote it: upgrade this reader
    Gone          a message that ought to be there is in no object any more
    DataLoss      a stream that a query follows has lost messages before they were read

Each text names the object or option and the remedy, and never a secret. All survive pickling, since Spark carries
them from a task to the driver.
"""

from __future__ import annotations

from broker.storage.format.errors import FormatError, VersionUnknown

__all__ = ["BadOption", "Damaged", "DataLoss", "Gone", "Newer", "NoStore", "NoStream", "PipelineError", "Unreachable",
           "of_format"]


class PipelineError(Exception):
    """A query cannot go on; ``str()`` names the object or option, and the remedy."""


class BadOption(PipelineError):
    """An option of the source is unknown, has a wrong value, or contradicts another."""


class NoStore(PipelineError):
    """There is no store, or no bucket or directory, at this URL."""


class NoStream(PipelineError):
    """No stream has that name."""


class Unreachable(PipelineError):
    """The store did not answer within its retries, or refuses to."""


class Damaged(PipelineError):
    """An object of the store cannot be decoded."""


class Newer(PipelineError):
    """A newer version wrote it."""


class Gone(PipelineError):
    """An object that the newest state names is not in the store."""


class DataLoss(PipelineError):
    """Messages that a streaming query has not read yet are no more."""


def of_format(error: FormatError, where: str, key: str | None = None) -> PipelineError:
    """What damage or a newer version means to a query: the error to raise instead.

    Args: where is the store, or the store and stream; key the object's, where ``error`` does not name it itself.
    """
    what = f"{where}: {error}" if key is None or error.name == key else f"{where}: {key}: {error}"
    if isinstance(error, VersionUnknown):
        return Newer(f"{what}: a newer version of jetblock wrote it; upgrade jetblock on the driver and all executors")
    return Damaged(f"{what}: no rows are given of what cannot be read; `jetblock inspect --verify` shows what else is "
                   f"damaged; restore the object from a backup, or read around it by startSeq, endSeq")
