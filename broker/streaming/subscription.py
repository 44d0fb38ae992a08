"""One subscription of a client: what it asked for, as a value that is stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from broker.streaming.wire.stan_pb2 import SubscriptionRequest

__all__ = ["Subscription"]


@dataclass(slots=True, eq=False)
class Subscription:
    """A subscription. Subscriptions with one ``consumer`` are the members of a queue group.

    Attributes:
        ``id``: identifies its registration. A client that resumes a durable subscription takes the registration over.
        ``ack_id``: the last token of the ack inbox: a new one for each client, so that none acks or ends the
            subscription of its successor.
        ``client_id``: the owner, also while the subscription is a durable one that nobody uses.
        ``queue``: the queue group; "" for none.
        ``consumer``: the name of the JetStream consumer that has the position.
        ``online``: False: a durable subscription that nobody uses.
        ``held``: messages that were delivered and not acked; counted for members of queue groups only.
        ``last_sent``: the highest sequence delivered to it; counted for members of queue groups only.
        ``ready``: False until the client has the answer to its request; it gets no message before.
    """

    id: str
    channel: str
    client_id: str
    inbox: str
    max_in_flight: int
    ack_wait_seconds: int
    durable: str
    queue: str
    consumer: str
    online: bool = True
    ack_id: str = ""
    held: int = 0
    last_sent: int = 0
    ready: bool = True

    @classmethod
    def requested(cls, request: SubscriptionRequest, sub_id: str, consumer: str) -> Subscription:
        """Return the subscription that a client asks for."""
        return cls(sub_id, request.subject, request.client_id, request.inbox, request.max_in_flight,
                   request.ack_wait_in_secs, request.durable_name, request.q_group, consumer, ack_id=sub_id,
                   ready=False)

    @classmethod
    def stored(cls, sub_id: str, record: dict[str, Any]) -> Subscription:
        """Return a subscription from its record.

        Raises: KeyError, TypeError, ValueError, if a field is missing or wrong.
        """
        return cls(sub_id, str(record["channel"]), str(record["client_id"]), str(record["inbox"]),
                   int(record["max_in_flight"]), int(record["ack_wait_seconds"]), str(record["durable"]),
                   str(record["queue"]), str(record["consumer"]), bool(record["online"]),
                   str(record.get("ack_id", sub_id)))

    def record(self) -> dict[str, Any]:
        """Return the members of its record."""
        return {"channel": self.channel, "client_id": self.client_id, "inbox": self.inbox,
                "max_in_flight": self.max_in_flight, "ack_wait_seconds": self.ack_wait_seconds,
                "durable": self.durable, "queue": self.queue, "consumer": self.consumer, "online": self.online,
                "ack_id": self.ack_id}

    @property
    def group_key(self) -> tuple[str, ...]:
        """The identity of the position: the queue group, or the client's durable; () for neither."""
        if self.queue:
            return (self.channel, "queue", self.durable, self.queue)
        return (self.channel, "durable", self.client_id, self.durable) if self.durable else ()
