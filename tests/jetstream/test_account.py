"""Streams and consumers are created, stored and restored: JetStream with its real neighbours over a store in memory.

The answers are compared in differential/test_api.py; these tests are about effects, and about states that nats-server
does not have.
"""

from __future__ import annotations

import asyncio

import pytest
from nats.errors import NoRespondersError

from broker.access.accounts import AccountLimits
from broker.config.settings import JetStreamSettings, ServerLimits
from broker.jetstream.wire.ids import short_hash
from tests.jetstream.in_process import Inside


@pytest.mark.shows("store.restart")
async def test_streams_and_consumers_are_there_after_a_restart() -> None:
    """Create, update, publish, pull, pause; then restart from the applied state: everything is as before."""
    async with Inside() as broker:
        await broker.ok("STREAM.CREATE.S", {"name": "S", "subjects": ["s.*"], "metadata": {"a": "b"}})
        await broker.ok("STREAM.UPDATE.S", {"name": "S", "subjects": ["s.*", "t"], "max_msgs": 50})
        for i in range(5):
            await broker.publish(f"s.{i}")
        await broker.ok("CONSUMER.CREATE.S.D", {"stream_name": "S", "config": {"durable_name": "D"}})
        await broker.ok("CONSUMER.CREATE.S.E", {"stream_name": "S", "config": {
            "name": "E", "inactive_threshold": 3_600_000_000_000, "filter_subject": "s.1"}})
        await broker.ok("CONSUMER.PAUSE.S.E", {"pause_until": "2100-01-01T00:00:00Z"})
        await broker.ok("CONSUMER.CREATE.S.GONE", {"stream_name": "S", "config": {"durable_name": "GONE"}})
        await broker.ok("CONSUMER.DELETE.S.GONE")
        await broker.ok("STREAM.CREATE.GONE", {"name": "GONE"})
        await broker.ok("STREAM.DELETE.GONE")
        subjects = ("STREAM.INFO.S", "CONSUMER.INFO.S.D", "CONSUMER.INFO.S.E", "STREAM.NAMES", "CONSUMER.NAMES.S")
        before = [await broker.ok(subject) for subject in subjects]
        await broker.restart()
        after = [await broker.ok(subject) for subject in subjects]
        for was, now in zip(before, after, strict=True):
            for shown in (was, now):
                shown.pop("ts", None)
                shown.pop("pause_remaining", None)
            assert now == was
        assert await broker.publish("t") == 6


async def test_memory_streams_and_consumers_are_forgotten() -> None:
    async with Inside() as broker:
        await broker.ok("STREAM.CREATE.M", {"name": "M", "storage": "memory"})
        assert await broker.publish("M") == 1
        await broker.ok("STREAM.CREATE.S", {"name": "S"})
        await broker.ok("CONSUMER.CREATE.S.C", {"stream_name": "S",
                                                "config": {"durable_name": "C", "mem_storage": True}})
        await broker.restart()
        assert (await broker.ok("STREAM.NAMES"))["streams"] == ["S"]
        assert (await broker.ok("CONSUMER.NAMES.S"))["consumers"] == []


@pytest.mark.shows("api.durable_answers")
async def test_an_answer_means_persisted() -> None:
    """A create that was answered is in the applied state, which contains only what is stored."""
    async with Inside() as broker:
        await broker.ok("STREAM.CREATE.S", {"name": "S"})
        state = broker.log.state.stream("$G", "S")
        assert state is not None
        await broker.ok("CONSUMER.CREATE.S.D", {"stream_name": "S", "config": {"durable_name": "D"}})
        assert list(state.consumers) == ["D"]
        await broker.ok("STREAM.DELETE.S")
        assert broker.log.state.stream("$G", "S") is None


async def test_requests_of_one_stream_are_answered_in_their_order() -> None:
    """Shows requests sent at once: each sees the effects of the one before."""
    async with Inside() as broker:
        answers = await asyncio.gather(
            broker.api("STREAM.CREATE.S", {"name": "S"}), broker.api("STREAM.INFO.S"),
            broker.api("CONSUMER.CREATE.S.D", {"stream_name": "S", "config": {"durable_name": "D"}}),
            broker.api("CONSUMER.NAMES.S"), broker.api("STREAM.DELETE.S"), broker.api("STREAM.INFO.S"))
        assert answers[1]["state"]["consumer_count"] == 0
        assert answers[3]["consumers"] == ["D"]
        assert answers[5]["error"]["err_code"] == 10059


async def test_without_the_shard_everything_is_unavailable_for_now() -> None:
    """A standby refuses at once; a request that is not JSON has no responders."""
    async with Inside(opened=False) as broker:
        assert await broker.error("STREAM.NAMES") == 10008
        assert await broker.error("STREAM.CREATE.S", {"name": "S"}) == 10008
        assert await broker.error("INFO") == 10008
        for subject in ("DIRECT.GET.S", "CONSUMER.MSG.NEXT.S.C"):
            with pytest.raises(NoRespondersError):
                await broker.ask(subject)
        await broker.open()
        await broker.ok("STREAM.CREATE.S", {"name": "S"})


async def test_a_stream_that_cannot_be_used_says_why_and_keeps_its_subjects() -> None:
    """Shows a configuration with a setting unknown to this version, as a newer broker's might have."""
    async with Inside() as broker:
        await broker.ok("STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
        state = broker.log.state.stream("$G", "S")
        assert state is not None
        await broker.log.drain()
        state.config["from_the_future"] = True
        await broker.restart()
        assert await broker.error("STREAM.INFO.S") == 10194
        assert await broker.error("STREAM.CREATE.T", {"name": "T", "subjects": ["s"]}) == 10065
        listed = await broker.ok("STREAM.LIST")
        assert listed["missing"] == ["S"]
        assert "from_the_future" in listed["offline"]["S"]


async def test_a_stream_that_cannot_be_used_can_be_deleted() -> None:
    """Shows that its subjects and its name are free at once, as on nats-server, and that it stays deleted."""
    async with Inside() as broker:
        await broker.ok("STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
        state = broker.log.state.stream("$G", "S")
        assert state is not None
        await broker.log.drain()
        state.config["from_the_future"] = True
        await broker.restart()
        assert await broker.error("STREAM.PURGE.S") == 10194
        assert (await broker.ok("STREAM.DELETE.S"))["success"]
        assert state.stream_id not in broker.log.state.streams
        assert await broker.error("STREAM.DELETE.S") == 10059
        listed = await broker.ok("STREAM.LIST")
        assert "offline" not in listed
        await broker.ok("STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
        assert await broker.publish("s") == 1
        await broker.restart()
        assert (await broker.ok("STREAM.INFO.S"))["state"]["messages"] == 1


@pytest.mark.shows("accounts.domains", "api.domain")
async def test_the_api_of_a_domain() -> None:
    async with Inside(JetStreamSettings(domain="hub")) as broker:
        await broker.ok("STREAM.CREATE.S", {"name": "S"}, prefix="$JS.hub.API.")
        assert (await broker.ok("STREAM.INFO.S"))["domain"] == "hub"
        assert (await broker.ok("INFO"))["domain"] == "hub"
        await broker.ok("CONSUMER.CREATE.S.D", {"stream_name": "S", "config": {"durable_name": "D"}})
        await broker.publish("S")
        assert (await broker.pull("S.D", prefix="$JS.hub.API.")).data == b"x"
        with pytest.raises(NoRespondersError):
            await broker.ask("INFO", prefix="$JS.other.API.")


@pytest.mark.shows("operation.strict")
async def test_a_lenient_server_passes_over_unknown_fields() -> None:
    async with Inside(JetStreamSettings(strict=False)) as broker:
        await broker.ok("STREAM.CREATE.S", {"name": "S", "bogus": 1})


@pytest.mark.shows("accounts.jetstream_limits")
@pytest.mark.parametrize("account, server, first, second, err_code", [
    (AccountLimits(max_streams=1), ServerLimits(), {}, {}, 10027),
    (AccountLimits(max_storage=100), ServerLimits(), {"max_bytes": 60}, {"max_bytes": 41}, 10047),
    (AccountLimits(max_memory=100), ServerLimits(), {"max_bytes": 60, "storage": "memory"},
     {"max_bytes": 41, "storage": "memory"}, 10028),
    (AccountLimits(), ServerLimits(max_storage=100), {"max_bytes": 60}, {"max_bytes": 41}, 10047),
    (AccountLimits(max_consumers=3), ServerLimits(), {}, {"max_consumers": 4}, 10026),
])
async def test_limits_of_an_account(account: AccountLimits, server: ServerLimits, first: dict[str, object],
                                        second: dict[str, object], err_code: int) -> None:
    async with Inside(JetStreamSettings(server=server), limits=account) as broker:
        await broker.ok("STREAM.CREATE.S", {"name": "S", **first})
        assert await broker.error("STREAM.CREATE.T", {"name": "T", **second}) == err_code
        await broker.ok("STREAM.CREATE.S", {"name": "S", **first})


@pytest.mark.shows("api.info")
async def test_account_info_counts_what_there_is() -> None:
    async with Inside() as broker:
        await broker.ok("STREAM.CREATE.S", {"name": "S", "max_bytes": 1000})
        await broker.ok("STREAM.CREATE.M", {"name": "M", "storage": "memory", "max_bytes": 500})
        await broker.publish("S")
        await broker.ok("CONSUMER.CREATE.S.D", {"stream_name": "S", "config": {"durable_name": "D"}})
        assert await broker.error("STREAM.INFO.NONE") == 10059
        info = await broker.ok("INFO")
        assert (info["streams"], info["consumers"], info["storage"], info["memory"]) == (2, 1, 32, 0)
        assert (info["reserved_storage"], info["reserved_memory"]) == (1000, 500)
        assert info["api"] == {"level": 5, "total": 4, "errors": 1}


async def test_a_stream_receives_the_subjects_of_its_configuration_and_no_others() -> None:
    async with Inside() as broker:
        await broker.ok("STREAM.CREATE.S", {"name": "S", "subjects": ["a", "b"]})
        await broker.ok("STREAM.UPDATE.S", {"name": "S", "subjects": ["b", "c"]})
        assert await broker.publish("c") == 1
        assert await broker.publish("b") == 2
        with pytest.raises(NoRespondersError):
            await broker.publish("a")
        await broker.ok("STREAM.DELETE.S")
        with pytest.raises(NoRespondersError):
            await broker.publish("b")


@pytest.mark.shows("deliver.status_503")
async def test_a_deleted_consumer_answers_nothing() -> None:
    """Shows that its pull requests and acks get no answer; a waiting request gets a status."""
    async with Inside() as broker:
        await broker.ok("STREAM.CREATE.S", {"name": "S"})
        await broker.ok("CONSUMER.CREATE.S.D", {"stream_name": "S", "config": {
            "durable_name": "D", "ack_policy": "explicit"}})
        waiting = asyncio.create_task(broker.pull("S.D"))
        while (await broker.ok("CONSUMER.INFO.S.D"))["num_waiting"] == 0:  # noqa: ASYNC110  # it is the broker's
            await asyncio.sleep(0)
        await broker.ok("CONSUMER.DELETE.S.D")
        ended = await waiting
        assert ended.headers is not None
        assert "409" in ended.headers.values()
        for subject in ("$JS.API.CONSUMER.MSG.NEXT.S.D", "$JS.ACK.S.D.1.1.1.1.0",
                        f"$JS.ACK._.{short_hash('$G')}.S.D.1.1.1.1.0.x"):
            with pytest.raises(NoRespondersError):
                await broker.client.request(subject, timeout=30)


@pytest.mark.shows("api.ack_subjects")
async def test_acks_come_in_both_forms() -> None:
    """The longer one names the account by a hash, which is nats-server's."""
    assert short_hash("$G") == "szMpdrwD"
    async with Inside() as broker:
        await broker.ok("STREAM.CREATE.S", {"name": "S"})
        await broker.ok("CONSUMER.CREATE.S.D", {"stream_name": "S", "config": {
            "durable_name": "D", "ack_policy": "explicit"}})
        for form in ("$JS.ACK", f"$JS.ACK._.{short_hash('$G')}"):
            await broker.publish("S")
            delivered = await broker.pull("S.D")
            numbers = delivered.reply.split(".", 4)[4]
            more = "" if form == "$JS.ACK" else ".x"
            assert (await broker.client.request(f"{form}.S.D.{numbers}{more}", b"+ACK", timeout=30)).data == b""
        assert (await broker.ok("CONSUMER.INFO.S.D"))["ack_floor"]["stream_seq"] == 2


async def test_an_ephemeral_consumer_leaves_when_nobody_uses_it() -> None:
    async with Inside() as broker:
        await broker.ok("STREAM.CREATE.S", {"name": "S"})
        made = await broker.ok("CONSUMER.CREATE.S", {"stream_name": "S", "config": {"inactive_threshold": 100_000_000}})
        assert len(made["name"]) == 8
        async with asyncio.timeout(30):
            while (await broker.ok("CONSUMER.NAMES.S"))["consumers"]:  # noqa: ASYNC110  # it is the broker's
                await asyncio.sleep(0.05)
        await broker.restart()
        assert (await broker.ok("CONSUMER.NAMES.S"))["consumers"] == []


async def test_a_request_without_reply_is_done_all_the_same() -> None:
    async with Inside() as broker:
        await broker.client.publish("$JS.API.STREAM.CREATE.S", b'{"name":"S"}')
        await broker.client.publish("$JS.API.STREAM.BOGUS.S", b"")
        assert (await broker.ok("STREAM.INFO.S"))["config"]["name"] == "S"


@pytest.mark.parametrize("name", ["ü", "a$b", "a\x00b", "-", "x" * 255, "日本"])
async def test_any_allowed_name_goes(name: str) -> None:
    """Names never become keys in the store, so no name can escape it."""
    async with Inside() as broker:
        await broker.ok(f"STREAM.CREATE.{name}", {"name": name, "subjects": ["s"]})
        await broker.ok(f"CONSUMER.CREATE.{name}.{name}", {"stream_name": name, "config": {"durable_name": name}})
        await broker.publish("s")
        await broker.restart()
        assert (await broker.ok(f"STREAM.INFO.{name}"))["state"]["messages"] == 1
        assert (await broker.ok(f"CONSUMER.INFO.{name}.{name}"))["num_pending"] == 1


async def test_no_direct_get_is_left_waiting() -> None:
    """Shows gets that arrive at every point of a worker's life: while it serves, as it ends, and after its end."""
    async with Inside() as broker:
        await broker.ok("STREAM.CREATE.S", {"name": "S", "allow_direct": True})
        await broker.publish("S")
        inbox = broker.client.new_inbox()
        subscription = await broker.client.subscribe(inbox)
        await broker.client.flush()
        # One message that is served at once takes no worker.
        request = (b"$JS.API.DIRECT.GET.S", inbox.encode(), 0, b'{"next_by_subj":"S"}')
        for i in range(120):
            broker.js.apis["$G"].on_requests([request], 0, 1, None, 0)
            for _ in range(i % 5):
                await asyncio.sleep(0)
        for _ in range(120):
            assert (await subscription.next_msg(timeout=30)).data == b"x"


async def test_few_tasks_wait_for_requests_and_none_for_an_account_that_left() -> None:
    """Requests about many streams are carried out concurrently, again and again;
    a task whose wait is cancelled is no loss."""
    async with Inside() as broker:
        names = [f"S{i}" for i in range(20)]
        for _ in range(3):
            answers = await asyncio.gather(*(broker.api(f"STREAM.CREATE.{name}", {"name": name}) for name in names))
            assert [answer["config"]["name"] for answer in answers] == names
            waiting = [task for task in asyncio.all_tasks() if task.get_name() == "api"]
            assert 0 < len(waiting) <= 4
        waiting[0].cancel()
        answers = await asyncio.gather(*(broker.api(f"STREAM.INFO.{name}") for name in names))
        assert [answer["config"]["name"] for answer in answers] == names
        await broker.js.remove_account("$G")
        assert not [task for task in asyncio.all_tasks() if task.get_name() == "api"]
        await broker.js.add_account("$G", broker.server.router, broker.limits)


async def test_requests_that_were_cut_off_leave_nothing_behind() -> None:
    """The shard is lost while requests of every kind wait; after it returns, their stream is served as before."""
    async with Inside() as broker:
        await broker.ok("STREAM.CREATE.S", {"name": "S", "allow_direct": True})
        await broker.publish("S")
        api = broker.js.apis["$G"]
        for subject, body in ((b"STREAM.INFO.S", b""), (b"DIRECT.GET.S", b'{"seq":1}'), (b"STREAM.PURGE.S", b"")) * 20:
            api.on_requests([(b"$JS.API." + subject, b"nobody", 0, body)], 0, 1, None, 0)
        await broker.js.close()
        assert await broker.error("STREAM.INFO.S") == 10008
        await broker.log.drain()
        await broker.log.close()
        await broker.open()
        assert (await broker.ok("STREAM.INFO.S"))["state"]["messages"] == 1
        assert (await broker.ask("DIRECT.GET.S", {"seq": 1})).data == b"x"
