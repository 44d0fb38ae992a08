"""Transforms that would make a subject of megabytes: the publish is refused, and nothing else is affected."""

from __future__ import annotations

import json
from pathlib import Path

import nats
import nats.errors
import nats.js.errors
import pytest

from tests.harness import BrokerProcess

LONG = "t" * 3900
TIMES_100 = ".".join(["$1"] * 100)
CONFIG = """
accounts {
    A {
        jetstream: enabled
        users [{user: a, password: p}]
        mappings: {"mapped.*": "m.TIMES"}
    }
}
""".replace("TIMES", TIMES_100)


def peak_kb(broker: BrokerProcess) -> int:
    status = Path(f"/proc/{broker.pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])


async def test_a_subject_that_becomes_too_long(tmp_path: Path) -> None:
    """A stream refuses the message as too large; a stream that sources it keeps its subject; it is not republished; an
    account's mapping leads nowhere. The process's memory hardly grows."""
    config = tmp_path / "server.conf"
    config.write_text(CONFIG)
    async with BrokerProcess("-js", "-sd", str(tmp_path / "store"), "-c", str(config)) as broker:
        nc = await nats.connect(broker.url, user="a", password="p")

        async def create(**stream: object) -> None:
            answer = json.loads((await nc.request(f"$JS.API.STREAM.CREATE.{stream['name']}",
                                                  json.dumps(stream).encode())).data)
            assert "error" not in answer, answer

        transform = {"src": "*.*", "dest": "x." + ".".join(["$2"] * 100)}
        await create(name="T", subjects=["t.*"], subject_transform=transform)
        await create(name="R", subjects=["r.*"], republish={"src": "r.*", "dest": "again." + TIMES_100})
        await create(name="S",
                     sources=[{"name": "R", "subject_transforms": [{"src": "r.*", "dest": "s." + TIMES_100}]}])
        before = peak_kb(broker)
        js = nc.jetstream()
        with pytest.raises(nats.js.errors.BadRequestError) as refused:
            await js.publish(f"t.{LONG}")
        assert (refused.value.err_code, refused.value.description) == (10054, "message size exceeds maximum allowed")
        assert (await js.publish("t.short")).seq == 1
        assert (await js.get_msg("T", 1)).subject == "x." + ".".join(["short"] * 100)

        again = await nc.subscribe("again.>")
        await js.publish(f"r.{LONG}")
        await js.publish("r.b")
        assert (await again.next_msg(30)).subject == "again." + ".".join(["b"] * 100)
        while (await js.stream_info("S")).state.messages < 2:
            pass
        assert [(await js.get_msg("S", seq)).subject for seq in (1, 2)] == [f"r.{LONG}", "s." + ".".join(["b"] * 100)]

        mapped = await nc.subscribe("m.>")
        with pytest.raises(nats.errors.NoRespondersError):
            await nc.request(f"mapped.{LONG}")
        await nc.publish("mapped.b", b"1")
        assert (await mapped.next_msg(30)).data == b"1"
        assert peak_kb(broker) - before < 50_000
        await nc.close()
