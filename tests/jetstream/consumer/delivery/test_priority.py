"""Priority policies: the requests that are served, against the rules applied one message at a time; pins over time.

The model below handles one message after the other and walks the queue as ADR-42 describes; the broker shares out
runs. Both must serve the same requests in the same order, and end the same ones. differential/priorities.py compares
with the real server.
"""

from __future__ import annotations

import json
import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.jetstream.consumer.delivery.priority import Supply, order_of
from broker.jetstream.consumer.delivery.pull import Waiting
from broker.jetstream.consumer.delivery.request import WaitingRequest, parse_request
from tests.jetstream.consumer.fakes import MS, SECOND, World, fresh_state, seqs, statuses
from tests.manual_clock import ManualClock

PIN = "the pin"
GROUP = {"priority_groups": ["g"]}


class _Silent:
    """Consumer events without a subscriber."""

    def pinned(self, group: str, pin: str) -> None: ...


class Model:
    """A queue of requests as dicts, in a list; it handles one message at a time."""

    def __init__(self, policy: str, requests: list[dict[str, Any]]) -> None:
        self.policy = policy
        self.queue = [dict(one, name=i, left=one["batch"], room=one["max_bytes"]) for i, one in enumerate(requests)]
        if policy == "prioritized":
            self.queue.sort(key=lambda one: one["priority"])
        self.pin = PIN if policy == "pinned_client" else ""
        self.ended: dict[int, str] = {}

    def serve(self, size: int, pending: int, acks: int) -> int | None:
        """Return the request that gets the message, or None."""
        for _ in range(len(self.queue)):
            one = self.queue[0]
            if self.policy == "pinned_client" and one["id"] not in ("", PIN):
                self.ended[one["name"]] = "423"
                self.queue.pop(0)
                continue
            reached = 0 < one["min_pending"] <= pending or 0 < one["min_ack_pending"] <= acks
            limited = one["min_pending"] > 0 or one["min_ack_pending"] > 0
            if (self.policy == "pinned_client" and not one["id"]) or (limited and not reached):
                self.queue.append(self.queue.pop(0))
                continue
            if one["max_bytes"] and size > one["room"]:
                self.ended[one["name"]] = "409 Message Size"
                self.queue.pop(0)
                continue
            one["room"] -= size
            one["left"] = 1 if one["max_bytes"] and not one["room"] else one["left"]
            one["left"] -= 1
            self.queue.pop(0)
            if one["left"]:
                equals = [i for i, other in enumerate(self.queue) if other["priority"] <= one["priority"]]
                behind = equals[-1] + 1 if self.policy == "prioritized" and equals else 0
                self.queue.insert(behind if self.policy == "prioritized" else len(self.queue), one)
            elif one["max_bytes"] and one["room"]:
                self.ended[one["name"]] = "409 Batch Completed"
            return int(one["name"])
        return None


def _requests(policy: str) -> st.SearchStrategy[list[dict[str, Any]]]:
    none, batch = st.just(0), st.integers(1, 6)
    limit = st.sampled_from([0, 0, 1, 3, 8]) if policy == "overflow" else none
    return st.lists(st.fixed_dictionaries({
        "group": st.just("g"), "batch": batch, "max_bytes": st.sampled_from([0, 0, 0, 7, 20]),
        "min_pending": limit, "min_ack_pending": limit,
        "priority": st.integers(0, 3) if policy == "prioritized" else none,
        "id": st.sampled_from(["", PIN, PIN, "old"]) if policy == "pinned_client" else st.just("")}), max_size=7)


@settings(max_examples=300, deadline=None)
@given(st.data(), st.sampled_from(["none", "overflow", "prioritized", "pinned_client"]))
def test_runs_are_shared_out_as_single_messages_would_be(data: st.DataObject, policy: str) -> None:
    """Random requests and messages of random sizes, offered in runs: the same receivers and ends as in the model."""
    requests = data.draw(_requests(policy))
    sizes = data.draw(st.lists(st.integers(1, 9), max_size=30))
    acks = data.draw(st.integers(0, 4))
    acked = data.draw(st.booleans())
    model = Model(policy, requests)
    waiting = Waiting(0, order_of(policy, _Silent(), ManualClock(), random.Random(1)))  # type: ignore[arg-type]
    waiting.order.pin = model.pin
    entries = []
    for body in requests:
        entry = WaitingRequest(b"%d" % len(entries), parse_request(_json(body)), 0)
        entries.append(entry)
        waiting.add(entry)

    expected = []
    for i, size in enumerate(sizes):
        if (name := model.serve(size, len(sizes) - i, acks + i * acked)) is None:
            break
        expected.append(name)

    served: list[int] = []
    ended: dict[int, str] = {}
    while len(served) < len(sizes):
        at = len(served)
        run = data.draw(st.integers(1, len(sizes) - at))
        turn = waiting.turn(Supply(len(sizes) - at, acks + at * acked, True, acked))
        if turn is None:
            break
        run = min(run, turn.wanted)
        ready, out = waiting.ready(turn, run, 0, lambda inbox: True)
        shares: list[Any] = []
        if ready:
            shares, ended_by_size = waiting.share(turn, run, lambda at=at: sizes[at:], 0)  # type: ignore[misc]
            out = out + ended_by_size
        names: dict[int, int] = {}
        for share in shares:
            names.update(dict.fromkeys(range(share.start, share.stop, share.step), int(share.to.reply)))
            if share.after is not None:
                out.append((share.to.reply, share.after))
        assert sorted(names) == list(range(len(names))), "shares cover the first messages without a gap"
        served += [names[i] for i in range(len(names))]
        for inbox, text in out:
            ended[int(inbox)] = text.decode().removeprefix("NATS/1.0 ")

    assert served == expected
    assert ended.keys() == model.ended.keys()
    assert all(ended[name].startswith(text) for name, text in model.ended.items())
    assert [int(r.reply) for r in waiting.requests] == [one["name"] for one in model.queue]


def test_a_pin_is_lost_in_time_unless_its_client_asks_again() -> None:
    """Requests with the pin extend it, others do not; when it expires, the next request in the queue gets a new pin."""
    w = World()
    consumer = w.consumer(priority_policy="pinned_client", priority_timeout=SECOND, **GROUP)
    w.stream.add("a")
    sent = w.pull(consumer, {"group": "g"})
    pin = sent[0].headers.split(b"Nats-Pin-Id: ")[1].split(b"\r\n")[0].decode()
    w.pass_time(600 * MS)
    assert not w.pull(consumer, {"group": "g", "id": pin}, inbox=b"_INBOX.first")
    assert not w.pull(consumer, {"group": "g"}, inbox=b"_INBOX.second")
    w.pass_time(600 * MS)
    assert not w.events("UNPINNED")
    w.stream.add("a")
    assert [d.to for d in w.pass_time(0)] == [b"_INBOX.first"]
    w.stream.add("a")
    assert not w.pass_time(300 * MS)
    sent = w.pass_time(200 * MS)
    assert [(d.seq, d.to) for d in sent] == [(3, b"_INBOX.second")]
    assert pin.encode() not in sent[0].headers
    assert [one["reason"] for one in w.events("UNPINNED")] == ["timeout"]
    assert len(w.events(".PINNED")) == 2
    assert statuses(w.pull(consumer, {"group": "g", "id": pin})) == ["423 Nats-Pin-Id mismatch"]


def test_a_pin_does_not_outlive_a_restart() -> None:
    """Pins are not stored: after a restart the former client gets a status, and pulls again."""
    w = World()
    config: dict[str, Any] = {"priority_policy": "pinned_client", "priority_timeout": SECOND, **GROUP}
    consumer = w.consumer(**config)
    w.stream.add("a", "a")
    sent = w.pull(consumer, {"group": "g"})
    pin = sent[0].headers.split(b"Nats-Pin-Id: ")[1].split(b"\r\n")[0].decode()
    state = w.stored(consumer, fresh_state(consumer))
    consumer.stop()
    w.stream.consumers.remove(consumer)
    again = w.consumer(state, **config)
    assert statuses(w.pull(again, {"group": "g", "id": pin})) == ["423 Nats-Wrong-Pin-Id"]
    assert seqs(w.pull(again, {"group": "g"})) == [2]


def _json(body: dict[str, Any]) -> bytes:
    return json.dumps(body).encode()
