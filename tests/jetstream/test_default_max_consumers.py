"""The setting ``jetstream { limits { default_max_consumers } }``, compared with the real nats-server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nats
import pytest

from broker.config.flags import read_flags
from broker.config.load import load
from tests.harness import BrokerProcess, NatsServerProcess, ServerProcess

CONFIGS = [
    ("jetstream { STORE, limits { default_max_consumers: 3 } }", ({}, {"max_consumers": 5}, {"max_consumers": 2},
                                                                 {"max_consumers": 0})),
    ("jetstream { STORE, limits { default_max_consumers: -7 } }", ({},)),
    ("jetstream { STORE, limits { default_max_consumers: 0, max_ack_pending: -5, max_request_batch: -1 } }", ({},)),
    ("jetstream { STORE, limits { default_max_consumers: 3, max_ha_assets: 4 } }\nno_auth_user: a\n"
     "accounts { A { jetstream { max_consumers: 5 }, users: [{user: a, password: a}] } }", ({},)),
    ("jetstream { STORE, limits { default_max_consumers: 5 } }\nno_auth_user: a\n"
     "accounts { A { jetstream { max_consumers: 3 }, users: [{user: a, password: a}] } }", ({}, {"max_consumers": 5})),
]


def written(folder: Path, config: str) -> Path:
    folder.mkdir()
    path = folder / "x.conf"
    path.write_text(config.replace("STORE", f'store_dir: "{folder / "store"}"'))
    return path


async def outcome(process: type[ServerProcess], config: str, streams: tuple[dict[str, Any], ...],
                  folder: Path) -> list[Any]:
    """Return the configured limit on /varz, and for each stream its configuration and the answers to nine consumers.

    The ninth has no name.
    """
    path = written(folder, config)
    async with process("-c", str(path)) as server:
        client = await nats.connect(server.url)

        async def ask(subject: str, request: dict[str, Any]) -> Any:
            return json.loads((await client.request(f"$JS.API.{subject}", json.dumps(request).encode())).data)

        found = [(await server.monitor("/varz"))["jetstream"]["limits"].get("default_max_consumers")]
        for number, stream in enumerate(streams):
            name = f"S{number}"
            made = await ask(f"STREAM.CREATE.{name}", {"name": name, "subjects": [name], "storage": "memory", **stream})
            found.append(made.get("error") or made["config"]["max_consumers"])
            for consumer in [f"c{number}" for number in range(8)]:
                found.append((await ask(f"CONSUMER.CREATE.{name}.{consumer}", {"stream_name": name, "config": {
                    "durable_name": consumer, "name": consumer, "ack_policy": "explicit"}})).get("error"))
            unnamed = await ask(f"CONSUMER.CREATE.{name}", {"stream_name": name, "config": {"ack_policy": "none"}})
            found.append(unnamed.get("error"))
        await client.close()
    return found


@pytest.mark.parametrize(("config", "streams"), CONFIGS)
async def test_as_the_real_server(config: str, streams: tuple[dict[str, Any], ...], tmp_path: Path) -> None:
    """The default counts if neither the stream nor its account has a limit; negative numbers mean none."""
    theirs = await outcome(NatsServerProcess, config, streams, tmp_path / "theirs")
    assert await outcome(BrokerProcess, config, streams, tmp_path / "ours") == theirs
    assert theirs[0] != 3 or any(one and one["err_code"] == 10026 for one in theirs[2:] if not isinstance(one, int))


def test_without_a_setting() -> None:
    """Shows 1000, as on nats-server."""
    assert load(read_flags(["-js"]), {}).jetstream.server.default_max_consumers == 1000
