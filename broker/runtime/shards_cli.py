"""``jetblock shards``: which broker owns each shard of a store that several brokers own, and hand-overs."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from typing import Any, Final

from broker.base.command import run_command
from broker.base.output import printable
from broker.base.progress import Progress
from broker.client.connection import ApiRefusal, Connection, ConnectionFailed, Login, connect
from broker.client.login_flags import add_login_flags, login_of

__all__ = ["main", "make_parser"]

_EPILOG = """\
The user is one of the system account. Its subjects are $JETBLOCK.SHARDS, $JETBLOCK.*.SHARD.*.STEPDOWN and
$JETBLOCK.*.STREAM.MOVE.
jetblock shards --server URL step-down 3 --preferred broker-2 lets the owner of shard 3 hand it over to broker-2;
without --preferred, to the broker with the fewest shards.
jetblock shards --server URL move APP ORDERS 3 moves the stream ORDERS of account APP to shard 3 while it is used.
status: 0 done, 2 not carried out
"""

_GATHER_SECONDS: Final = 1.0
_HAND_OVER_SECONDS: Final = 20.0


def main(arguments: Sequence[str]) -> int:
    """List the shards, or let one be handed over; return the exit status."""
    return run_command("shards", lambda progress: _run(_parse(arguments), progress), ApiRefusal, ConnectionFailed,
                       ValueError, again="list the shards: the hand-over may be done; a move goes on")


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(prog="jetblock shards", epilog=_EPILOG,
                                     description="Show which brokers own the shards of a store, hand shards over, and "
                                                 "move streams between shards.",
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("list", "step-down", "move"), help="what to do")
    parser.add_argument("of", nargs="*", metavar="ARG", help="with step-down: the shard that is handed over; with "
                                                            "move: an account, its stream, and the new shard")
    parser.add_argument("--preferred", default="", metavar="NAME", help="the broker that gets the shard")
    parser.add_argument("--store", default="", metavar="ID", help="the id of the store, if there are several")
    parser.add_argument("--server", default="nats://127.0.0.1:4222", metavar="URL", help="a NATS server that reaches "
                                                                                         "the brokers")
    add_login_flags(parser, "", " of the system account")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    return parser


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = make_parser()
    options = parser.parse_args(list(arguments))
    if len(options.of) != {"list": 0, "step-down": 1, "move": 3}[options.action]:
        parser.error("step-down takes the number of a shard, move takes ACCOUNT STREAM SHARD, and list takes nothing")
    if options.of and not options.of[-1].isdecimal():
        parser.error(f"{options.of[-1]!r} is no number of a shard")
    return options


def _run(options: argparse.Namespace, progress: Progress) -> int:
    found = asyncio.run(_carry_out(options))
    progress.clear()
    if options.json:
        json.dump(found, sys.stdout, indent=1)
        print()
    elif options.action == "list":
        print("\n".join(map(printable, _table(found["brokers"]))))
    elif options.action == "move":
        print(printable(f"stream {found['stream']} of account {found['account']} is in shard {found['shard']}"))
    else:
        print(printable(f"shard {found['shard']} is {found['owner']}'s"))
    return 0


async def _carry_out(options: argparse.Namespace) -> dict[str, Any]:
    """Raises: ApiRefusal, ConnectionFailed; ValueError: there are several stores."""
    connection = await connect(Login(options.server, **login_of(options)), name="jetblock shards")
    try:
        brokers = [one for one in await _brokers(connection) if options.store in ("", one["store"])]
        if not brokers:
            raise ConnectionFailed(f"{connection.shown}: no broker that shares a store answers: is this user in the "
                                   "system account?")
        stores = sorted({one["store"] for one in brokers})
        if options.action == "list":
            return {"brokers": brokers}
        if len(stores) > 1:
            raise ValueError(f"there are several stores: choose one with --store: {', '.join(stores)}")
        if options.action == "move":
            return await _move(connection, stores[0], *options.of)
        body = {"placement": {"preferred": options.preferred}} if options.preferred else {}
        return connection.decode(await connection.request(
            f"$JETBLOCK.{stores[0]}.SHARD.{options.of[0]}.STEPDOWN", json.dumps(body).encode(), _HAND_OVER_SECONDS))
    finally:
        await connection.close()


async def _move(connection: Connection, store: str, account: str, stream: str, shard: str) -> dict[str, Any]:
    """Let a stream move, and return once it has: a large one takes long. Raises: ApiRefusal, ConnectionFailed."""
    body = json.dumps({"account": account, "stream": stream, "shard": int(shard)}).encode()
    while True:
        answer = connection.decode(await connection.request(f"$JETBLOCK.{store}.STREAM.MOVE", body, _HAND_OVER_SECONDS))
        if answer.get("done"):
            return answer


async def _brokers(connection: Connection) -> list[dict[str, Any]]:
    """Return the lines of all brokers that answer within a second."""
    client = connection.client
    inbox = client.new_inbox()
    answers = await client.subscribe(inbox)
    await client.publish("$JETBLOCK.SHARDS", reply=inbox)
    await asyncio.sleep(_GATHER_SECONDS)
    found = []
    while answers.pending_msgs:
        data = (await answers.next_msg(1)).data
        if data:  # an empty answer: there are no responders
            found.append(connection.decode(data))
    return sorted(found, key=lambda one: (one["store"], one["name"]))


def _table(brokers: Sequence[dict[str, Any]]) -> list[str]:
    """Return a line for each shard."""
    owners = {(one["store"], int(shard)): (one, rate) for one in brokers for shard, rate in one["shards"].items()}
    rows = [("STORE", "SHARD", "OWNER", "BYTES/S")]
    for store in sorted({one["store"] for one in brokers}):
        for shard in range(max(one["count"] for one in brokers if one["store"] == store)):
            one, rate = owners.get((store, shard), (None, 0.0))
            rows.append((store, str(shard), one["name"] if one else "-", f"{rate:.0f}" if one else "-"))
    widths = [max(len(row[at]) for row in rows) for at in range(4)]
    idle = sorted(one["name"] for one in brokers if not one["shards"])
    return [*("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows),
            *([f"no shard: {', '.join(idle)}"] if idle else [])]
