"""Mirrors and sources of another account's streams: the same on the real nats-server and on the broker.

Account A has the streams; B, C and D import its API and deliveries in different ways. player.py describes the steps;
each here begins with the account that plays it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio

from tests.harness import BrokerProcess, NatsServerProcess, ServerProcess
from tests.jetstream.differential.player import Played, Player, compare, steps_of

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.shows("copy.other_accounts")]

CONFIG = """
jetstream {{ max_mem: 100MB, max_file: 100MB, store_dir: "{}" }}
authorization {{ timeout: 60 }}
accounts {{
  A {{ jetstream: enabled, users: [ {{user: a, password: a}} ]
      exports: [ {{service: "$JS.API.>", response_type: stream}}, {{service: "$JS.FC.>"}}, {{stream: "deliver.>"}} ] }}
  B {{ jetstream: enabled, users: [ {{user: b, password: b}} ]
      imports: [ {{service: {{account: A, subject: "$JS.API.>"}}, to: "JS.a.API.>"}}
                 {{service: {{account: A, subject: "$JS.FC.>"}}}}, {{stream: {{account: A, subject: "deliver.>"}}}} ] }}
  C {{ jetstream: enabled, users: [ {{user: c, password: c}} ]
      imports: [ {{service: {{account: A, subject: "$JS.API.CONSUMER.CREATE.S.>"}}, to: "JS.s.API.CONSUMER.CREATE.S.>"}}
                 {{service: {{account: A, subject: "$JS.API.CONSUMER.CREATE.S"}}, to: "JS.t.API.CONSUMER.CREATE.T"}}
                 {{service: {{account: A, subject: "$JS.FC.>"}}}}, {{stream: {{account: A,
                     subject: "deliver.c.>"}}}} ] }}
  D {{ users: [ {{user: d, password: d}} ]
      exports: [ {{service: "$JS.API.>", response_type: stream}}, {{stream: "deliver.>"}} ] }}
  E {{ jetstream: enabled, users: [ {{user: e, password: e}} ]
      imports: [ {{service: {{account: D, subject: "$JS.API.>"}}, to: "JS.d.API.>"}}
                 {{stream: {{account: D, subject: "deliver.>"}}}} ] }}
}}
"""

_A = '"external": {"api": "JS.a.API", "deliver": "deliver.b"}'
_TRANSFORMED = f'{{"name": "S", "subject_transforms": [{{"src": "s.*", "dest": "x.$1"}}], {_A}}}'

SCENARIOS = {
    "mirror": f"""a stream
        a fill 3 s.a
        a pub[X: y; Nats-Msg-Id: 7; Nats-Expected-Last-Sequence: 3] s.b 4
        b make M {{"mirror": {{"name": "S", {_A}}}}}
        b grown M 4
        b msgs M
        a api STREAM.MSG.DELETE.S {{"seq": 2}}
        a pub s.c 5
        b grown M 5
        b api STREAM.MSG.GET.M {{"seq": 5}}
        b api STREAM.INFO.S
        b make N {{"mirror": {{"name": "S", "filter_subject": "s.a", {_A}}}}}
        b grown N 3
        b msgs N""",
    "sources of two accounts": f"""a stream
        b make T {{"subjects": ["t.>"]}}
        a pub s.a 1
        b make D {{"sources": [{{"name": "S", {_A}}}, {{"name": "T"}}], "subjects": ["d.>"]}}
        b grown D 1
        b pub t.a 2
        b grown D 2
        b pub d.a 3
        a pub s.b 4
        b grown D 4
        b msgs D""",
    "two sources of one name": f"""a stream
        b stream
        b make D {{"sources": [{{"name": "S", {_A}}}, {{"name": "S", "filter_subject": "s.b"}}, {_TRANSFORMED}]}}
        a pub s.a 1
        b grown D 2
        b pub s.b 3
        b grown D 3""",
    "sums of counters of two accounts": f"""a stream {{"allow_msg_counter": true}}
        b make D {{"sources": [{{"name": "S", {_A}}}], "allow_msg_counter": true, "subjects": ["d.>"]}}
        a pub[Nats-Incr: 5] s.a
        a pub[Nats-Incr: 6] s.a
        b grown D 2
        b msgs D""",
    "an import of one stream": """a stream
        a make T {"subjects": ["t.>"]}
        a fill 2 s.a
        a fill 1 t.a
        c make M {"mirror": {"name": "S", "filter_subject": "s.a", "external": {"api": "JS.s.API",
            "deliver": "deliver.c"}}}
        c grown M 2
        c msgs M
        c make O {"sources": [{"name": "T", "external": {"api": "JS.t.API", "deliver": "deliver.c"}}]}
        c failed O""",
    "a stream that is not there": f"""b make M {{"mirror": {{"name": "S", {_A}}}}}
        b failed M
        b make D {{"sources": [{{"name": "S", {_A}}}]}}
        b failed D""",
    "an account without JetStream": """e make M {"mirror": {"name": "S", "external": {"api": "JS.d.API",
            "deliver": "deliver.e"}}}
        e failed M""",
    "configurations": "\n".join(f"b make M {config}" for config in (
        '{"mirror": {"name": "S", "external": {"api": "$JS.API", "deliver": "deliver.b"}}}',
        '{"mirror": {"name": "S", "external": {"api": "JS.*.API", "deliver": "deliver.b"}}}',
        '{"mirror": {"name": "S", "external": {"api": "JS.a.API", "deliver": "deliver.>"}}}',
        '{"sources": [{"name": "S.x", "external": {"api": "JS.a.API", "deliver": "deliver.b"}}]}',
        '{"sources": [{"name": "S", "external": {"api": "JS.a.API"}}, {"name": "S", "external": {"api": "JS.a.API"}}]}',
        '{"mirror": {"name": "M", "external": {"api": "JS.a.API", "deliver": "deliver.b"}}, "mirror_direct": true}')),
}

Accounts = dict[str, Player]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def servers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Accounts, Accounts]]:
    """Yield nats-server's accounts, and the broker's."""
    base = tmp_path_factory.mktemp("accounts")
    found = []
    async with AsyncExitStack() as stack:
        kinds: list[type[ServerProcess]] = [NatsServerProcess, BrokerProcess]
        for kind in kinds:
            path = base / f"{kind.__name__}.conf"
            path.write_text(CONFIG.format(base / kind.__name__))
            server = await stack.enter_async_context(kind("-c", str(path)))
            found.append({name: await stack.enter_async_context(Player(server.port, name)) for name in "abce"})
        yield found[0], found[1]


async def _play(accounts: Accounts, scenario: str) -> Played:
    for player in accounts.values():
        await player.clear()
    played: Played = []
    for line in scenario.splitlines():
        name, step = line.strip().split(" ", 1)
        _, result = (await accounts[name].play(step))[0]
        played.append((line.strip(), result))
    return played


@pytest.mark.parametrize("name", SCENARIOS)
async def test_all_is_as_on_nats_server(servers: tuple[Accounts, Accounts], name: str) -> None:
    async def play() -> list[Played]:
        return await asyncio.gather(*(_play(accounts, steps_of(SCENARIOS[name])) for accounts in servers))

    await compare([player for accounts in servers for player in accounts.values()], play)
