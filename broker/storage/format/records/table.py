"""The kinds of records that this version knows."""

from __future__ import annotations

from typing import Final

from broker.storage.format.records.adoption import Adoption
from broker.storage.format.records.append import Append
from broker.storage.format.records.arrival import Arrival
from broker.storage.format.records.body import RecordBody
from broker.storage.format.records.catalogue import Catalogue
from broker.storage.format.records.ceiling import Ceiling
from broker.storage.format.records.commits import Commits
from broker.storage.format.records.consumer_create import ConsumerCreate
from broker.storage.format.records.consumer_delete import ConsumerDelete
from broker.storage.format.records.consumer_state import ConsumerDelta
from broker.storage.format.records.consumer_update import ConsumerUpdate
from broker.storage.format.records.departure import Departure
from broker.storage.format.records.expiry import Expiry
from broker.storage.format.records.message_ids import MessageIds
from broker.storage.format.records.opening import Opening
from broker.storage.format.records.release import Release
from broker.storage.format.records.remains import Remains
from broker.storage.format.records.schedule import Schedule
from broker.storage.format.records.stream_create import StreamCreate
from broker.storage.format.records.stream_delete import StreamDelete
from broker.storage.format.records.stream_update import StreamUpdate

__all__ = ["BODIES"]

BODIES: Final[dict[int, type[RecordBody]]] = {body.KIND: body for body in (
    StreamCreate,
    StreamUpdate,
    StreamDelete,
    ConsumerCreate,
    ConsumerUpdate,
    ConsumerDelete,
    ConsumerDelta,
    MessageIds,
    Ceiling,
    Release,
    Opening,
    Expiry,
    Schedule,
    Adoption,
    Append,
    Commits,
    Catalogue,
    Departure,
    Arrival,
    Remains,
)}
"""The classes of bodies, by kind."""
