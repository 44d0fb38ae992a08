"""Messages that a program puts beside a stream, and the request to let them join it. docs/ADOPTION.md has an example.

Nothing here does I/O: ``jetblock.store`` opens the store, and any client that can put if absent may put the objects.
"""

from broker.storage.format.section import SECTIONS as PLAIN
from broker.storage.staging.answers import Answer, answer_in, answer_to
from broker.storage.staging.writer import Acting, RowRefused, RunWriter, ToPut, Version, request_id_of, request_object

__all__ = ["PLAIN", "Acting", "Answer", "RowRefused", "RunWriter", "ToPut", "Version", "answer_in", "answer_to",
           "request_id_of", "request_object"]
