"""The actions of NATS Streaming clients, as data: each scenario is played to nats-streaming-server and to jetblock.

A scenario gets a ``World`` of its own, and notes what a client sees. The notes of both servers must be equal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from broker.streaming.wire import stan_pb2 as wire
from tests.streaming.stan_client import FIRST, LAST, NEW, SEQUENCE, TIME, StanClient, Sub

__all__ = ["SCENARIOS", "World"]

SECOND = 1_000_000_000
GARBAGE = b"\x0a\xff\xff"
"""No protobuf message: its first field is longer than the rest."""

Scenario = Callable[["World"], Awaitable[None]]


class World:
    """One scenario on one server. Client IDs and channels are the scenario's own."""

    def __init__(self, url: str, name: str) -> None:
        self.url = url
        self.name = name
        self.channel = f"{name}.channel"
        self.notes: list[Any] = []
        self._clients: list[StanClient] = []

    async def client(self, name: str = "a", **request: Any) -> StanClient:
        """Return a client that is connected and registered."""
        client = await StanClient.open(self.url, f"{self.name}-{name}", **request)
        self._clients.append(client)
        return client

    def note(self, *values: Any) -> None:
        self.notes.append(values)

    async def close(self) -> None:
        for client in self._clients:
            await client.nc.close()


SCENARIOS: dict[str, Scenario] = {}


def scenario(play: Scenario) -> Scenario:
    SCENARIOS[play.__name__] = play
    return play


def scenarios(cases: dict[str, Any]) -> Callable[[Callable[[World, Any], Awaitable[None]]], None]:
    """Make a scenario for each case; the name of a case is added to that of the function."""
    def add(play: Callable[[World, Any], Awaitable[None]]) -> None:
        for name, case in cases.items():
            async def one(world: World, case: Any = case) -> None:
                await play(world, case)
            SCENARIOS[f"{play.__name__}_{name}"] = one
    return add


# --- connections ------------------------------------------------------------------------------------------------------


@scenario
async def connect(world: World) -> None:
    client = await world.client()
    answer = client.connected
    world.note([field.name for field, _ in answer.ListFields()], answer.ping_interval, answer.ping_max_out,
               answer.protocol, answer.ping_requests)
    world.note(answer.pub_prefix.rpartition(".")[0], answer.sub_requests.rpartition(".")[0],
               answer.unsub_requests.rpartition(".")[0], answer.sub_close_requests.rpartition(".")[0],
               answer.close_requests.rpartition(".")[0])


@scenario
async def connect_with_protocol_0(world: World) -> None:
    client = await world.client(protocol=0, conn_id=b"")
    world.note([field.name for field, _ in client.connected.ListFields()])
    world.note(await client.publish(world.channel, b"one"))
    world.note((await client.publish(world.channel, b"two", conn_id=b"whatever")).error)


@scenarios({"empty": {"client_id": ""}, "dots": {"client_id": "a.b"}, "space": {"client_id": "a b"},
            "umlaut": {"client_id": "ä"}, "slash": {"client_id": "a/b"}, "no_inbox": {"heartbeat_inbox": ""},
            "line_feed": {"client_id": "a\n"}, "long": {"client_id": "x" * 500},
            "dollar": {"client_id": "a$b"}, "colon": {"client_id": "a:b"}, "wildcard": {"client_id": "*"},
            "dashes": {"client_id": "connect-with_dashes"}})
async def connect_with(world: World, fields: dict[str, Any]) -> None:
    other = await world.client()
    client = StanClient(other.nc, "connect-with")
    world.note(await client.register(**fields))


@scenario
async def connect_garbage(world: World) -> None:
    client = await world.client()
    world.note(wire.ConnectResponse.FromString(await client.request("_STAN.discover.test-cluster", GARBAGE)))


@scenario
async def connect_twice(world: World) -> None:
    first = await world.client()
    second = StanClient(first.nc, first.id)
    world.note(await second.register())
    world.note(await first.publish(world.channel, b"still here"))


@scenario
async def connect_in_place_of_a_dead_client(world: World) -> None:
    dead = await world.client()
    await dead.publish_all(world.channel, b"one")
    sub = await dead.subscribe(world.channel, FIRST)
    world.note(await sub.next())
    conn_id = dead.conn_id
    await dead.nc.close()
    alive = await world.client()
    world.note(await alive.ping(), await alive.ping(conn_id))
    world.note((await alive.publish(world.channel, b"two", conn_id=conn_id)).error)
    world.note((await alive.publish(world.channel, b"three")).error)
    world.note((await alive.publish(world.channel, b"four", conn_id=b"")).error)


@scenario
async def connect_in_place_of_a_silent_client(world: World) -> None:
    silent = await world.client()
    silent.answers_heartbeats = False
    alive = await world.client()
    world.note(silent.heartbeats, await alive.ping(), await silent.ping())


@scenario
async def close_a_client(world: World) -> None:
    client = await world.client()
    await client.publish_all(world.channel, b"one")
    sub = await client.subscribe(world.channel, FIRST)
    world.note(await sub.next())
    world.note(await client.close(), await client.close())
    world.note(await client.ping())
    world.note((await client.publish(world.channel, b"two")).error)
    world.note((await client.subscribe(world.channel)).error, await sub.close())


@scenario
async def close_garbage(world: World) -> None:
    client = await world.client()
    answer = await client.request(client.connected.close_requests, GARBAGE)
    world.note(wire.CloseResponse.FromString(answer).error)
    answer = await client.request(client.connected.close_requests, b"")
    world.note(wire.CloseResponse.FromString(answer).error)


@scenario
async def ping(world: World) -> None:
    client = await world.client()
    world.note(await client.ping(), await client.ping(b"unknown"))


@scenario
async def connect_again_after_close(world: World) -> None:
    client = await world.client()
    world.note(await client.close(), await client.register(), await client.ping())
    world.note(await client.publish(world.channel, b"one"))


# --- publishing -------------------------------------------------------------------------------------------------------


@scenario
async def publish(world: World) -> None:
    client = await world.client()
    for data in (b"one", b"", bytes(100_000)):
        world.note(await client.publish(world.channel, data))
    sub = await client.subscribe(world.channel, FIRST)
    world.note(await sub.take(3))


@scenario
async def publish_with_a_reply(world: World) -> None:
    client = await world.client()
    await client.publish(world.channel, b"question", reply="some.inbox")
    await client.publish(world.channel, b"", reply="x")
    sub = await client.subscribe(world.channel, FIRST)
    first, second = await sub.msgs.get(), await sub.msgs.get()
    world.note(first.reply, first.data, first.subject, first.crc32, second.reply, second.data)
    world.note(0 <= second.timestamp - first.timestamp < 30 * SECOND)


@scenarios({"no_guid": {"guid": ""}, "no_channel": {"subject": ""}, "wildcard": {"subject": "a.*"},
            "full_wildcard": {"subject": "a.>"}, "empty_token": {"subject": "a..b"}, "dot_first": {"subject": ".a"},
            "dot_last": {"subject": "a."}, "slash": {"subject": "a/b"}, "no_client": {"client_id": ""},
            "unknown_client": {"client_id": "nobody"}, "other_conn_id": {"conn_id": b"other"},
            "star_in_token": {"subject": "a*b"}, "no_conn_id": {"conn_id": b""},
            "no_ids": {"conn_id": b"", "client_id": ""}})
async def publish_with(world: World, fields: dict[str, Any]) -> None:
    client = await world.client()
    ack = await client.publish(world.channel, b"data", **fields)
    world.note(ack.error, ack.guid)


@scenario
async def publish_garbage(world: World) -> None:
    client = await world.client()
    answer = await client.request(f"{client.connected.pub_prefix}.{world.channel}", GARBAGE)
    world.note(wire.PubAck.FromString(answer))


@scenario
async def publish_to_another_subject(world: World) -> None:
    """The channel is the one in the message, not the one in the subject."""
    client = await world.client()
    world.note(await client.publish(world.channel, b"one", subject=f"{world.channel}.other"))
    sub = await client.subscribe(f"{world.channel}.other", FIRST)
    world.note(await sub.next())


@scenarios({"colons": "a:b", "percent": "a%2Eb", "dollar": "$a.b", "underscores": "_a_.b", "backslash": "a\\b",
            "umlaut": "ä.ö", "many_tokens": "a.b.c.d.e.f.g.h", "dash": "a-b",
            "equals": "a=b", "hash": "a#b", "quote": 'a"b', "plus": "a+b", "upper": "A.a", "colon_dot": "a:b.c%3Ad"})
async def channel_named(world: World, name: str) -> None:
    client = await world.client()
    channel = f"{world.name}.{name}"
    world.note((await client.publish(channel, b"one")).error)
    sub = await client.subscribe(channel, FIRST)
    world.note(sub.error, await sub.take(1))


@scenario
async def publish_without_a_reply_subject(world: World) -> None:
    client = await world.client()
    msg = wire.PubMsg(client_id=client.id, guid="g", subject=world.channel, data=b"one", conn_id=client.conn_id)
    await client.nc.publish(f"{client.connected.pub_prefix}.{world.channel}", msg.SerializeToString())
    world.note((await client.publish(world.channel, b"two")).error)
    sub = await client.subscribe(world.channel, FIRST)
    world.note(await sub.take(2))


# --- start positions --------------------------------------------------------------------------------------------------


@scenarios({"new": (NEW, 0, 0), "last": (LAST, 0, 0), "first": (FIRST, 0, 0), "sequence_0": (SEQUENCE, 0, 0),
            "sequence_1": (SEQUENCE, 1, 0), "sequence_3": (SEQUENCE, 3, 0), "sequence_5": (SEQUENCE, 5, 0),
            "sequence_6": (SEQUENCE, 6, 0), "sequence_99": (SEQUENCE, 99, 0),
            "sequence_max": (SEQUENCE, (1 << 64) - 1, 0), "time_0": (TIME, 0, 0),
            "time_hour": (TIME, 0, 3600 * SECOND), "time_future": (TIME, 0, -3600 * SECOND),
            "time_before_1970": (TIME, 0, (1 << 63) - 1), "time_after_2262": (TIME, 0, -(1 << 63))})
async def start_at(world: World, start: tuple[int, int, int]) -> None:
    position, seq, delta = start
    client = await world.client()
    await client.publish_all(world.channel, b"1", b"2", b"3", b"4", b"5")
    sub = await client.subscribe(world.channel, position, seq=seq, delta=delta)
    await client.publish_all(world.channel, b"6")
    found = [await sub.next()]
    while found[-1].data != b"6":
        found.append(await sub.next())
    world.note(sub.error, found)


@scenarios({"new": (NEW, 0, 0), "last": (LAST, 0, 0), "first": (FIRST, 0, 0), "sequence_0": (SEQUENCE, 0, 0),
            "sequence_1": (SEQUENCE, 1, 0), "sequence_9": (SEQUENCE, 9, 0), "time": (TIME, 0, 3600 * SECOND)})
async def start_in_an_empty_channel_at(world: World, start: tuple[int, int, int]) -> None:
    position, seq, delta = start
    client = await world.client()
    sub = await client.subscribe(world.channel, position, seq=seq, delta=delta)
    await client.publish_all(world.channel, b"1", b"2")
    world.note(sub.error, await sub.take(2))


@scenarios({"no_client": {"client_id": ""}, "unknown_client": {"client_id": "nobody"}, "no_channel": {"subject": ""},
            "wildcard": {"subject": "a.*"}, "full_wildcard": {"subject": "a.>"}, "empty_token": {"subject": "a..b"},
            "slash": {"subject": "a/b"}, "ack_wait_0": {"ack_wait": 0}, "ack_wait_negative": {"ack_wait": -5},
            "in_flight_0": {"in_flight": 0}, "in_flight_negative": {"in_flight": -1},
            "durable_colon": {"queue": "q", "durable": "a:b"}, "plain_durable_colon": {"durable": "a:b"},
            "position_5": {"start_position": 5}, "position_negative": {"start_position": -1},
            "everything_wrong": {"client_id": "", "ack_wait": 0, "subject": "a.*"},
            "ack_wait_and_subject": {"ack_wait": 0, "subject": "a.*"}, "largest": {
                "ack_wait": (1 << 31) - 1, "in_flight": (1 << 31) - 1},
            "queue_colon": {"queue": "a:b"}, "queue_spaces": {"queue": "a b"}, "durable_spaces": {"durable": "a b"}})
async def subscribe_with(world: World, fields: dict[str, Any]) -> None:
    client = await world.client()
    await client.publish_all(world.channel, b"one")
    sub = await client.subscribe(world.channel, FIRST, **fields)
    world.note(sub.error, bool(sub.ack_inbox))
    if not sub.error:
        world.note(await sub.next())


@scenario
async def subscribe_garbage(world: World) -> None:
    client = await world.client()
    answer = await client.request(client.connected.sub_requests, GARBAGE)
    world.note(wire.SubscriptionResponse.FromString(answer))


@scenario
async def unsubscribe_garbage(world: World) -> None:
    client = await world.client()
    for subject in (client.connected.unsub_requests, client.connected.sub_close_requests):
        world.note(wire.SubscriptionResponse.FromString(await client.request(subject, GARBAGE)))


# --- acks and redelivery ----------------------------------------------------------------------------------------------


@scenarios({"1": 1, "2": 2, "5": 5})
async def in_flight_at_most(world: World, most: int) -> None:
    client = await world.client()
    await client.publish_all(world.channel, *(b"%d" % i for i in range(6)))
    sub = await client.subscribe(world.channel, FIRST, in_flight=most)
    found = await sub.rest()
    world.note(found)
    await sub.ack(found[0].seq)
    more = await sub.rest()
    world.note(more)
    await sub.ack(*(one.seq for one in (*found[1:], *more)))
    world.note(await sub.take(6 - len(found) - len(more)))


@scenario
async def redelivery(world: World) -> None:
    client = await world.client()
    await client.publish_all(world.channel, b"1", b"2", b"3")
    sub = await client.subscribe(world.channel, FIRST, ack_wait=1)
    world.note(await sub.take(3, ack=False))
    await sub.ack(2)
    world.note(await sub.take(2, ack=False), await sub.take(2))
    await client.publish_all(world.channel, b"4")
    world.note(await sub.take(1))


@scenario
async def redelivery_beyond_max_in_flight(world: World) -> None:
    client = await world.client()
    await client.publish_all(world.channel, b"1", b"2", b"3", b"4")
    sub = await client.subscribe(world.channel, FIRST, ack_wait=1, in_flight=2)
    world.note(await sub.take(2, ack=False), await sub.take(2, ack=False))
    await sub.ack(1, 2)
    world.note(await sub.take(2))


@scenario
async def acks_of_other_messages(world: World) -> None:
    client = await world.client()
    await client.publish_all(world.channel, b"1", b"2")
    sub = await client.subscribe(world.channel, FIRST, ack_wait=1, in_flight=1)
    world.note(await sub.next())
    await sub.ack(0, 2, 77, (1 << 64) - 1)
    await sub.ack(1, channel=f"{world.channel}.other")
    await client.nc.publish(sub.ack_inbox, GARBAGE)
    world.note(await sub.next())
    await sub.ack(1, 1)
    world.note(await sub.take(1), await sub.rest())


@scenario
async def acks_to_another_subscription(world: World) -> None:
    client = await world.client()
    await client.publish_all(world.channel, b"1")
    one = await client.subscribe(world.channel, FIRST, ack_wait=1)
    two = await client.subscribe(world.channel, FIRST, ack_wait=30)
    world.note(await one.next(), await two.next())
    await two.ack(1)
    world.note(await one.next(), await two.rest(0.2))


@scenario
async def ack_of_another_client(world: World) -> None:
    """The server does not know who sends an ack: the inbox alone counts."""
    one, two = await world.client("one"), await world.client("two")
    await one.publish_all(world.channel, b"1", b"2")
    sub = await one.subscribe(world.channel, FIRST, in_flight=1)
    world.note(await sub.next())
    await Sub(two, world.channel, "", sub.ack_inbox).ack(1)
    world.note(await sub.next())


# --- closing and unsubscribing ----------------------------------------------------------------------------------------


@scenarios({"close": "close", "unsubscribe": "unsubscribe"})
async def end_by(world: World, how: str) -> None:
    client = await world.client()
    await client.publish_all(world.channel, b"1")
    sub = await client.subscribe(world.channel, FIRST)
    world.note(await sub.take(1))
    world.note(await getattr(sub, how)(), await sub.close(), await sub.unsubscribe())
    await client.publish_all(world.channel, b"2")
    world.note(await sub.rest())
    world.note(await (await client.subscribe(world.channel, FIRST)).take(2))


@scenario
async def end_what_is_not_there(world: World) -> None:
    client, other = await world.client(), await world.client("other")
    sub = await client.subscribe(world.channel)
    close = client.connected.sub_close_requests
    world.note(await client.end(close, "no.such.channel", sub.ack_inbox), await client.end(close, world.channel, "x"),
               await client.end(close, world.channel, ""), await client.end(close, "", sub.ack_inbox))
    world.note(await other.end(close, world.channel, sub.ack_inbox))


@scenario
async def end_by_the_inbox(world: World) -> None:
    client = await world.client()
    sub = await client.subscribe(world.channel)
    world.note(await client.end(client.connected.unsub_requests, world.channel, sub.inbox), await sub.close())


@scenario
async def end_on_another_channel(world: World) -> None:
    client = await world.client()
    await client.publish_all(f"{world.channel}.other", b"1")
    sub = await client.subscribe(world.channel)
    world.note(await client.end(client.connected.unsub_requests, f"{world.channel}.other", sub.ack_inbox))
    world.note(await sub.unsubscribe())


# --- durable subscriptions --------------------------------------------------------------------------------------------


@scenario
async def durable_continues(world: World) -> None:
    client = await world.client()
    await client.publish_all(world.channel, b"1", b"2", b"3")
    sub = await client.subscribe(world.channel, FIRST, durable="d", in_flight=2)
    world.note(await sub.take(1), await sub.take(2, ack=False))
    await sub.ack(2)
    world.note(await sub.close())
    await client.publish_all(world.channel, b"4")
    again = await client.subscribe(world.channel, NEW, durable="d")
    world.note(again.error, await again.take(2))


@scenario
async def durable_of_a_closed_client(world: World) -> None:
    client = await world.client()
    await client.publish_all(world.channel, b"1", b"2")
    sub = await client.subscribe(world.channel, FIRST, durable="d", in_flight=1)
    world.note(await sub.take(1), await sub.next(), await client.close())
    world.note(await client.register())
    again = await client.subscribe(world.channel, FIRST, durable="d")
    world.note(await again.take(1))


@scenario
async def durable_removed(world: World) -> None:
    client = await world.client()
    await client.publish_all(world.channel, b"1", b"2")
    sub = await client.subscribe(world.channel, FIRST, durable="d")
    world.note(await sub.take(2), await sub.unsubscribe())
    again = await client.subscribe(world.channel, FIRST, durable="d")
    world.note(await again.take(2))


@scenario
async def durable_twice(world: World) -> None:
    client, other = await world.client(), await world.client("other")
    await client.publish_all(world.channel, b"1")
    await client.subscribe(world.channel, FIRST, durable="d")
    world.note((await client.subscribe(world.channel, FIRST, durable="d")).error)
    sub = await other.subscribe(world.channel, FIRST, durable="d")
    world.note(sub.error, await sub.take(1))
    sub = await client.subscribe(f"{world.channel}.other", FIRST, durable="d")
    world.note(sub.error)


@scenario
async def durable_with_other_limits(world: World) -> None:
    client = await world.client()
    await client.publish_all(world.channel, b"1", b"2", b"3", b"4")
    sub = await client.subscribe(world.channel, FIRST, durable="d", in_flight=3)
    world.note(await sub.take(3, ack=False), await sub.close())
    again = await client.subscribe(world.channel, durable="d", in_flight=1, ack_wait=1)
    world.note(await again.take(3))
    world.note(await again.take(1))


@scenario
async def durable_closed_and_closed_again(world: World) -> None:
    client = await world.client()
    sub = await client.subscribe(world.channel, durable="d")
    world.note(await sub.close(), await sub.close(), await sub.unsubscribe())


@scenario
async def durable_of_a_dead_client(world: World) -> None:
    dead = await world.client()
    await dead.publish_all(world.channel, b"1", b"2", b"3")
    sub = await dead.subscribe(world.channel, FIRST, durable="d", in_flight=2)
    world.note(await sub.take(1), await sub.take(2, ack=False))
    await dead.nc.close()
    alive = await world.client()
    again = await alive.subscribe(world.channel, durable="d")
    world.note(again.error, await again.take(2))


@scenario
async def durable_of_a_dead_client_that_comes_back(world: World) -> None:
    """Acks and requests of the first client's subscription do not reach that of its successor."""
    first = await world.client()
    await first.publish_all(world.channel, b"1", b"2")
    sub = await first.subscribe(world.channel, FIRST, durable="d")
    world.note(await sub.take(2, ack=False))
    first.answers_heartbeats = False
    second = await world.client()
    again = await second.subscribe(world.channel, durable="d")
    await sub.ack(1, 2)
    world.note(await again.take(2, ack=False), again.ack_inbox != sub.ack_inbox)
    world.note(await sub.close(), await sub.unsubscribe(), await first.ping())
    world.note(await again.close())
    again = await second.subscribe(world.channel, durable="d")
    world.note(await again.take(2), await again.rest())


# --- queue groups -----------------------------------------------------------------------------------------------------


@scenario
async def queue_group(world: World) -> None:
    client, other = await world.client(), await world.client("other")
    one = await client.subscribe(world.channel, queue="q")
    two = await other.subscribe(world.channel, queue="q")
    await client.publish_all(world.channel, *(b"%d" % i for i in range(10)))
    first, second = await one.rest(0.5), await two.rest(0.5)
    world.note(len(first), len(second), sorted(one.seq for one in (*first, *second)))


@scenario
async def queue_group_position_is_shared(world: World) -> None:
    client = await world.client()
    await client.publish_all(world.channel, b"1", b"2")
    one = await client.subscribe(world.channel, FIRST, queue="q")
    world.note(await one.take(2))
    two = await client.subscribe(world.channel, FIRST, queue="q")
    world.note(two.error, await two.rest())
    world.note(await one.close(), await two.close())
    three = await client.subscribe(world.channel, FIRST, queue="q")
    world.note(await three.take(2))


@scenario
async def queue_group_and_others(world: World) -> None:
    client = await world.client()
    group = await client.subscribe(world.channel, queue="q")
    other = await client.subscribe(world.channel, queue="r")
    plain = await client.subscribe(world.channel)
    durable = await client.subscribe(world.channel, queue="q", durable="d")
    await client.publish_all(world.channel, b"1")
    for sub in (group, other, plain, durable):
        world.note(sub.error, await sub.take(1))


@scenario
async def queue_member_at_its_limit(world: World) -> None:
    client = await world.client()
    one = await client.subscribe(world.channel, queue="q", in_flight=1)
    two = await client.subscribe(world.channel, queue="q", in_flight=3)
    await client.publish_all(world.channel, *(b"%d" % i for i in range(6)))
    first, second = await one.rest(0.5), await two.rest(0.5)
    world.note(len(first), len(second))
    await one.ack(*(one.seq for one in first))
    await two.ack(*(one.seq for one in second))
    left = [*await one.rest(0.5), *await two.rest(0.5)]
    world.note(sorted(one.seq for one in left))


@scenarios({"close": "close", "unsubscribe": "unsubscribe"})
async def queue_member_leaves_by(world: World, how: str) -> None:
    client = await world.client()
    one = await client.subscribe(world.channel, queue="q")
    await client.publish_all(world.channel, b"1", b"2")
    world.note(await one.take(2, ack=False))
    two = await client.subscribe(world.channel, queue="q")
    world.note(await getattr(one, how)())
    world.note(await two.take(2))


@scenario
async def queue_member_does_not_ack(world: World) -> None:
    client = await world.client()
    one = await client.subscribe(world.channel, queue="q", ack_wait=1)
    await client.publish_all(world.channel, b"1")
    world.note(await one.next())
    two = await client.subscribe(world.channel, queue="q", ack_wait=1)
    again = await two.next()
    world.note(again)
    await one.ack(1)
    world.note(await one.rest(1.5), await two.rest(0.2))


@scenario
async def durable_queue_group(world: World) -> None:
    client, other = await world.client(), await world.client("other")
    await client.publish_all(world.channel, b"1", b"2")
    one = await client.subscribe(world.channel, FIRST, queue="q", durable="d")
    world.note(await one.take(1), await one.next(), await one.close())
    await client.publish_all(world.channel, b"3")
    two = await other.subscribe(world.channel, NEW, queue="q", durable="d")
    world.note(two.error, await two.take(2))
    three = await client.subscribe(world.channel, NEW, queue="q", durable="d")
    world.note(await two.unsubscribe(), await three.close())
    four = await client.subscribe(world.channel, FIRST, queue="q", durable="d")
    world.note(await four.rest())
    world.note(await four.unsubscribe())
    five = await client.subscribe(world.channel, FIRST, queue="q", durable="d")
    world.note(await five.take(3))


@scenario
async def durable_queue_group_of_a_closed_client(world: World) -> None:
    client = await world.client()
    await client.publish_all(world.channel, b"1", b"2", b"3")
    sub = await client.subscribe(world.channel, FIRST, queue="q", durable="d", in_flight=2)
    world.note(await sub.take(1), await sub.take(2, ack=False), await client.close())
    other = await world.client("other")
    again = await other.subscribe(world.channel, FIRST, queue="q", durable="d")
    world.note(await again.take(2))


@scenario
async def durables_by_name(world: World) -> None:
    client = await world.client()
    await client.publish_all(world.channel, b"1")
    for queue, durable in (("", "a"), ("", "b"), ("q", "a"), ("q", "b"), ("r", "a")):
        sub = await client.subscribe(world.channel, FIRST, queue=queue, durable=durable)
        world.note(sub.error, await sub.take(1), await sub.close())
    for queue, durable in (("", "a"), ("", "b"), ("q", "a"), ("q", "b"), ("r", "a")):
        sub = await client.subscribe(world.channel, FIRST, queue=queue, durable=durable)
        world.note(sub.error, await sub.rest(0.1))


# --- more of each kind ------------------------------------------------------------------------------------------------


@scenarios({"sequence": (SEQUENCE, 2, 0), "last": (LAST, 0, 0), "new": (NEW, 0, 0), "first": (FIRST, 0, 0),
            "time": (TIME, 0, 3600 * SECOND)})
async def durable_starts_at(world: World, start: tuple[int, int, int]) -> None:
    """The start position counts at the first time only."""
    position, seq, delta = start
    client = await world.client()
    await client.publish_all(world.channel, b"1", b"2", b"3")
    sub = await client.subscribe(world.channel, position, seq=seq, delta=delta, durable="d")
    await client.publish_all(world.channel, b"4")
    found = [await sub.next()]
    while found[-1].data != b"4":
        found.append(await sub.next())
    await sub.ack(*(one.seq for one in found))
    world.note(found, await sub.close())
    await client.publish_all(world.channel, b"5")
    again = await client.subscribe(world.channel, FIRST, durable="d")
    world.note(await again.take(1))


@scenarios({"sequence": (SEQUENCE, 2, 0), "last": (LAST, 0, 0), "first": (FIRST, 0, 0)})
async def queue_group_starts_at(world: World, start: tuple[int, int, int]) -> None:
    """The start position of the first member counts."""
    position, seq, delta = start
    client = await world.client()
    await client.publish_all(world.channel, b"1", b"2", b"3")
    one = await client.subscribe(world.channel, position, seq=seq, delta=delta, queue="q")
    first = await one.rest()
    await one.ack(*(one.seq for one in first))
    two = await client.subscribe(world.channel, FIRST, queue="q")
    world.note(first, await two.rest())


@scenarios({"1": 1, "3": 3, "10": 10})
async def redelivery_count(world: World, msgs: int) -> None:
    client = await world.client()
    await client.publish_all(world.channel, *(b"%d" % i for i in range(msgs)))
    sub = await client.subscribe(world.channel, FIRST, ack_wait=1)
    for _ in range(3):
        world.note(await sub.take(msgs, ack=False))


@scenario
async def redelivery_count_of_a_queue_group(world: World) -> None:
    """Members of a group share the count."""
    client = await world.client()
    await client.publish_all(world.channel, b"1")
    sub = await client.subscribe(world.channel, FIRST, queue="q", ack_wait=1)
    world.note(await sub.next(), await sub.next())
    other = await client.subscribe(world.channel, FIRST, queue="q", ack_wait=1)
    world.note(await other.next())


@scenario
async def several_subscriptions_of_a_client(world: World) -> None:
    client = await world.client()
    subs = [await client.subscribe(world.channel) for _ in range(5)]
    await client.publish_all(world.channel, b"1", b"2")
    for sub in subs:
        world.note(await sub.take(2))
    world.note(await subs[0].close())
    await client.publish_all(world.channel, b"3")
    world.note(await subs[1].take(1), await subs[0].rest(0.1))


@scenario
async def channels_are_apart(world: World) -> None:
    client = await world.client()
    for channel in ("a", "a.b", "a.c", "b"):
        await client.publish_all(f"{world.channel}.{channel}", channel.encode())
    for channel in ("a", "a.b", "a.c", "b"):
        sub = await client.subscribe(f"{world.channel}.{channel}", FIRST)
        world.note(await sub.take(1), await sub.rest(0.05))


@scenario
async def subscribe_before_the_first_publish(world: World) -> None:
    client, other = await world.client(), await world.client("other")
    sub = await other.subscribe(world.channel, LAST)
    await client.publish_all(world.channel, b"1", b"2")
    world.note(await sub.take(2))


@scenarios({"subscribe": "subscribe", "ping": "ping", "publish": "publish"})
async def after_close(world: World, what: str) -> None:
    """A closed client is unknown, whatever it does."""
    client = await world.client()
    await client.close()
    if what == "subscribe":
        world.note((await client.subscribe(world.channel, durable="d")).error)
    elif what == "ping":
        world.note(await client.ping())
    else:
        world.note((await client.publish(world.channel, conn_id=b"")).error)


@scenario
async def close_a_client_with_a_queue_member(world: World) -> None:
    """The unacknowledged messages of a closed client go to the other member."""
    one, two = await world.client("one"), await world.client("two")
    first = await one.subscribe(world.channel, queue="q")
    await one.publish_all(world.channel, b"1", b"2", b"3")
    world.note(await first.take(3, ack=False))
    second = await two.subscribe(world.channel, queue="q")
    world.note(await one.close())
    world.note(sorted(one.seq for one in await second.take(3)))


@scenario
async def two_durables_of_a_client(world: World) -> None:
    client = await world.client()
    await client.publish_all(world.channel, b"1", b"2")
    one = await client.subscribe(world.channel, FIRST, durable="one")
    two = await client.subscribe(world.channel, LAST, durable="two")
    world.note(await one.take(2), await two.take(1), await one.close(), await two.unsubscribe())
    await client.publish_all(world.channel, b"3")
    one = await client.subscribe(world.channel, FIRST, durable="one")
    two = await client.subscribe(world.channel, FIRST, durable="two")
    world.note(await one.take(1), await two.take(3))


@scenario
async def durable_queue_members_come_and_go(world: World) -> None:
    client = await world.client()
    await client.publish_all(world.channel, b"1", b"2", b"3", b"4")
    one = await client.subscribe(world.channel, FIRST, queue="q", durable="d", in_flight=1)
    world.note(await one.take(1), await one.next())
    two = await client.subscribe(world.channel, FIRST, queue="q", durable="d", in_flight=1)
    world.note(await two.take(1), await two.next())
    world.note(await one.close(), await two.next())
    await two.ack(2, 4)
    world.note(await two.close())
    three = await client.subscribe(world.channel, FIRST, queue="q", durable="d")
    world.note(await three.rest())


@scenarios({"close": "", "close_durable": "d"})
async def queue_members_leave_at_once(world: World, durable: str) -> None:
    clients = [await world.client(name) for name in "abcd"]
    for end in (Sub.close, Sub.unsubscribe):
        subs = [await client.subscribe(world.channel, queue="q", durable=durable) for client in clients]
        world.note(await asyncio.gather(*map(end, subs)))
    again = await clients[0].subscribe(world.channel, queue="q", durable=durable)
    world.note(again.error, await asyncio.gather(*(client.close() for client in clients)))


@scenarios({"inbox": "inbox", "ack_inbox": "ack_inbox"})
async def end_a_durable_by(world: World, name: str) -> None:
    client = await world.client()
    sub = await client.subscribe(world.channel, durable="d")
    world.note(await client.end(client.connected.sub_close_requests, world.channel, getattr(sub, name)))
    again = await client.subscribe(world.channel, durable="d")
    world.note(again.error)


@scenario
async def empty_requests(world: World) -> None:
    client = await world.client()
    connected = client.connected
    world.note(wire.SubscriptionResponse.FromString(await client.request(connected.sub_requests, b"")).error)
    world.note(wire.SubscriptionResponse.FromString(await client.request(connected.unsub_requests, b"")).error)
    world.note(wire.SubscriptionResponse.FromString(await client.request(connected.sub_close_requests, b"")).error)
    world.note(wire.ConnectResponse.FromString(await client.request("_STAN.discover.test-cluster", b"")).error)
    world.note(wire.PubAck.FromString(await client.request(f"{connected.pub_prefix}.x", b"")).error)
