"""The choice of the queue group member for each message of a batch, by heaps: a group may have thousands of members.

The member with the fewest unacknowledged messages gets the next one; of several, the one that comes first in the turns.
If the first one in the turns is chosen, it goes to their end.

Source: nats-streaming-server, server/server.go findBestQueueSub.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace
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

    def take_new(self, count: int) -> list[Subscription]:
        """Return the members for the next ``count`` messages, counting these as held; fewer if all have enough then."""
        members, places, free = self._members, self._places, self._free
        chosen: list[Subscription] = []
        while free and len(chosen) < count:
            held, place, member = free[0]
            if held != member.held or place != places[member]:
                heappop(free)
                continue
            if member is members[0]:
                place = self._to_end(member)
            member.held = held = held + 1
            if held < member.max_in_flight:
                heapreplace(free, (held, place, member))
            else:
                heappop(free)
                heappush(self._full, (held, place, member))
            chosen.append(member)
        return chosen

    def take_any(self) -> Subscription:
        """Return the member for the next message, counting it as held, even if all have enough."""
        if chosen := self.take_new(1):
            return chosen[0]
        while True:
            held, place, member = heappop(self._full)
            if held == member.held and place == self._places[member]:
                if member is self._members[0]:
                    self._to_end(member)
                self.count(member, 1)
                return member

    def count(self, member: Subscription, change: int) -> None:
        """Change the number of messages that a member has; it may have left."""
        member.held += change
        if (place := self._places.get(member)) is not None:
            heap = self._free if member.held < member.max_in_flight else self._full
            heappush(heap, (member.held, place, member))

    def _to_end(self, member: Subscription) -> int:
        """Let the first member in the turns be the last one; return its new place."""
        self._members.append(self._members.pop(0))
        self._places[member] = place = self._end
        self._end += 1
        return place
