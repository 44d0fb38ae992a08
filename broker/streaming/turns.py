"""The choice of the queue group member for each message of a batch, by heaps: a group may have thousands of members.

The member with the fewest unacknowledged messages gets the next one; of several, the one that comes first in the turns.
If the first one in the turns is chosen, it goes to their end.

Source: nats-streaming-server, server/server.go findBestQueueSub.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.streaming.subscription import Subscription

__all__ = ["Turns"]

_Entry = tuple[int, int, "Subscription"]
"""Number of messages, place in the turns, member. An entry whose numbers have changed since is ignored."""


class Turns:
    """The turns of one batch. Args: ``members``: in the order in which they are chosen; it is changed."""

    def __init__(self, members: list[Subscription]) -> None:
        self._members = members
        self._places = {member: place for place, member in enumerate(members)}
        self._end = len(members)
        entries = [(member.held, place, member) for place, member in enumerate(members)]
        self._free: list[_Entry] = [entry for entry in entries if entry[0] < entry[2].max_in_flight]
        self._full: list[_Entry] = [entry for entry in entries if entry[0] >= entry[2].max_in_flight]
        heapify(self._free)
        heapify(self._full)

    def take(self, *, any_member: bool) -> Subscription | None:
        """Return the member for the next message, counting it as held; None if all have enough.

        ``any_member``: the message may go to a member that has enough.
        """
        member = self._first(self._free, full=False)
        if member is None and any_member:
            member = self._first(self._full, full=True)
        if member is None:
            return None
        if member is self._members[0]:
            self._members.append(self._members.pop(0))
            self._places[member] = self._end
            self._end += 1
        self.count(member, 1)
        return member

    def count(self, member: Subscription, change: int) -> None:
        """Change the number of messages that a member has; it may have left."""
        member.held += change
        if (place := self._places.get(member)) is not None:
            heap = self._free if member.held < member.max_in_flight else self._full
            heappush(heap, (member.held, place, member))

    def _first(self, heap: list[_Entry], *, full: bool) -> Subscription | None:
        """Remove and return the first member of a heap."""
        while heap:
            held, place, member = heappop(heap)
            if (held == member.held and place == self._places[member]
                    and (held >= member.max_in_flight) is full):
                return member
        return None
