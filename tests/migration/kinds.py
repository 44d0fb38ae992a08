"""A nats-server with a stream of every kind, as applications leave them, and the client's view of a stream."""

from __future__ import annotations

import asyncio
from typing import Any

from nats.aio.client import Client

from tests.jetstream.archives import Failed, api

__all__ = ["FILLED", "fill", "seen", "until"]

_HOUR = 3600 * 10**9

STREAMS: dict[str, dict[str, Any]] = {
    "LIMITS": {"subjects": ["limits.>"], "max_msgs": 90, "max_msgs_per_subject": 40},
    "HOLES": {"subjects": ["holes"], "compression": "s2"},
    "BIG": {"subjects": ["big"], "compression": "s2"},
    "WORK": {"subjects": ["work.>"], "retention": "workqueue"},
    "INTEREST": {"subjects": ["interest"], "retention": "interest"},
    "AGED": {"subjects": ["aged"], "max_age": _HOUR, "allow_msg_ttl": True},
    "COUNTER": {"subjects": ["count.>"], "allow_msg_counter": True, "allow_direct": True},
    "SCHEDULED": {"subjects": ["later.>", "due"], "allow_msg_schedules": True, "allow_msg_ttl": True},
    "SEALED": {"subjects": ["sealed"]},
    "EMPTY": {"subjects": ["empty"], "metadata": {"owner": "nobody"}},
    "PURGED": {"subjects": ["purged"]},
    "ORIGIN": {"subjects": ["origin.>"]},
    "MIRROR": {"mirror": {"name": "ORIGIN"}},
    "ALL": {"subjects": ["all"], "sources": [{"name": "ORIGIN", "filter_subject": "origin.a"}, {"name": "HOLES"}]},
    "KV_config": {"subjects": ["$KV.config.>"], "max_msgs_per_subject": 5, "allow_rollup_hdrs": True,
                  "deny_delete": True, "allow_direct": True, "max_age": _HOUR, "allow_msg_ttl": True, "discard": "new"},
    "OBJ_files": {"subjects": ["$O.files.C.>", "$O.files.M.>"], "allow_rollup_hdrs": True, "discard": "new"},
    "MEMORY": {"subjects": ["memory"], "storage": "memory"},
}

FILLED = tuple(STREAMS)

NUMBERS = ("messages", "bytes", "first_seq", "last_seq", "first_ts", "last_ts")


async def fill(client: Client) -> None:
    """Create all streams, publish, delete, and consume a part."""
    js = client.jetstream()
    for name, config in STREAMS.items():
        await api(client, f"STREAM.CREATE.{name}", {"name": name, **config})
    for n in range(120):
        await js.publish(f"limits.{n % 4}", b"limits %d" % n, headers={"Nats-Msg-Id": f"limits-{n}"})
        await js.publish("holes", b"holes %d " % n * 9, headers={"N": str(n)})
    for n in range(20):
        await js.publish("big", bytes([n]) * 100_000)
        await js.publish(f"work.{n % 2}", b"task %d" % n)
        await js.publish(f"origin.{'ab'[n % 2]}", b"origin %d" % n)
        await js.publish("aged", b"aged %d" % n, headers={"Nats-TTL": "1h"} if n % 2 else None)
        await client.request("count.a", b"", headers={"Nats-Incr": str(n)})
        for subject in ("sealed", "purged", "memory"):
            await js.publish(subject, b"%d" % n)
        await js.publish(f"$KV.config.key{n % 3}", b"value %d" % n,
                         headers={"KV-Operation": "PURGE", "Nats-Rollup": "sub"}
                         if n == 10 else None)
        await js.publish(f"$O.files.C.{n % 2}", bytes(5000))
    await client.request("later.one", b"due", headers={"Nats-Schedule": "@at 2190-01-01T00:00:00Z",
                                                       "Nats-Schedule-Target": "due"})
    await js.publish("$O.files.M.bmFtZQ==", b'{"name":"name"}')
    await until(client, "MIRROR", "last_seq", 20)
    await until(client, "ALL", "messages", 130)
    for seq in (1, 2, 50, 51, 77, 120):
        await api(client, "STREAM.MSG.DELETE.HOLES", {"seq": seq})
    await api(client, "STREAM.PURGE.PURGED")
    await api(client, "STREAM.UPDATE.SEALED", {"name": "SEALED", **STREAMS["SEALED"], "sealed": True})
    await _consume(client)


async def _consume(client: Client) -> None:
    js = client.jetstream()
    for stream, name, config in (
            ("WORK", "even", {"filter_subject": "work.0", "ack_wait": _HOUR}),
            ("WORK", "odd", {"filter_subject": "work.1"}),
            ("INTEREST", "one", {"ack_wait": _HOUR}), ("INTEREST", "two", {}),
            ("LIMITS", "all", {"ack_policy": "all", "ack_wait": _HOUR}), ("LIMITS", "none", {"ack_policy": "none"}),
            ("LIMITS", "push", {"deliver_subject": "to.nobody"}),
            ("KV_config", "watch", {"deliver_policy": "last_per_subject", "filter_subject": "$KV.config.>"})):
        await api(client, f"CONSUMER.CREATE.{stream}.{name}", {"stream_name": stream, "config": {
            "name": name, "durable_name": name, "ack_policy": "explicit", **config}})
    for n in range(10):
        await js.publish("interest", b"%d" % n)
    # The work is in progress: some messages are acked, out of order, one is given back, some are open.
    even = await (await js.pull_subscribe_bind("even", "WORK")).fetch(6)
    for msg in (even[0], even[3]):
        await msg.ack_sync()
    await even[1].nak(delay=3600)
    for name, acked in (("one", (0, 2)), ("two", (0,))):
        msgs = await (await js.pull_subscribe_bind(name, "INTEREST")).fetch(4)
        for at in acked:
            await msgs[at].ack_sync()
    await (await (await js.pull_subscribe_bind("all", "LIMITS")).fetch(7))[4].ack_sync()
    await (await js.pull_subscribe_bind("none", "LIMITS")).fetch(3)


async def until(client: Client, name: str, key: str, value: int) -> None:
    """Wait until a figure of the stream's state is at least ``value``."""
    async with asyncio.timeout(30):
        while True:
            if (await api(client, f"STREAM.INFO.{name}"))["state"][key] >= value:
                return
            await asyncio.sleep(0.02)


async def seen(client: Client, name: str) -> dict[str, Any]:
    """Return everything that a move must keep: configuration, time of creation, figures, each message, each
    consumer's state."""
    info = await api(client, f"STREAM.INFO.{name}", {"deleted_details": True})
    state, config = info["state"], info["config"]
    messages = {}
    for seq in range(1, min(state["last_seq"], 130) + 1):
        try:
            messages[seq] = (await api(client, f"STREAM.MSG.GET.{name}", {"seq": seq}))["message"]
        except Failed as failed:
            messages[seq] = failed.error["err_code"]
    consumers = {}
    for consumer in (await api(client, f"CONSUMER.NAMES.{name}"))["consumers"]:
        one = await api(client, f"CONSUMER.INFO.{name}.{consumer}")
        plain = ("config", "num_ack_pending", "num_redelivered", "num_pending")
        consumers[consumer] = {key: one.get(key) for key in plain} | {
            key: {part: one[key][part] for part in ("consumer_seq", "stream_seq")}
            for key in ("delivered", "ack_floor")}
    kept = [key for key in NUMBERS if (key != "bytes" or config["storage"] == "file")
            # A restored stream has the time of its last message as the last time, also on nats-server.
            and (key != "last_ts" or isinstance(messages.get(state["last_seq"]), dict))]
    if not state["messages"]:
        state |= {"first_seq": state["last_seq"] + 1, "deleted": None}
    return {"config": config, "created": info["created"], "state": {key: state[key] for key in kept},
            "deleted": state.get("deleted"), "messages": messages, "consumers": consumers}
