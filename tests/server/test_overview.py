"""The rows that a server gives monitoring: made when they are shown; subscriptions by account and subject."""

from __future__ import annotations

import asyncio

from broker.server.overview import _COLUMNS, certificates_of, connections, subscriptions_of, subsz_rows
from tests.server.in_process import running
from tests.server.raw_client import Wire

QUIET = b'CONNECT {"verbose":false,"headers":true}\r\n'


async def test_rows_made_late_equal_rows_made_at_once() -> None:
    """Each column by which rows are sorted equals that of the whole row; a client that disconnects meanwhile is
    harmless."""
    async with running() as server:
        async with Wire(server.port) as wire:
            wire.send(QUIET + b"SUB a.* 1\r\nSUB b q 2\r\nPUB a.x 3\r\nabc\r\n")
            await wire.settled()
            row, = connections(server)
            early = {name: row[name] for name in _COLUMNS}
            assert (early["subscriptions"], early["in_msgs"], early["in_bytes"], early["out_msgs"]) == (2, 1, 3, 1)
            whole = dict(row)
            assert {name: whole[name] for name in _COLUMNS} == early
            assert [sub["subject"] for sub in subscriptions_of(server, row)] == ["a.*", "b"]
            late, = connections(server)
        async with asyncio.timeout(30):
            while server.clients:  # noqa: ASYNC110 (a server notifies nobody when a client leaves)
                await asyncio.sleep(0.01)
        assert late["cid"] == whole["cid"]
        assert (list(subscriptions_of(server, late)), certificates_of(server, late)) == ([], [])
        gone, = connections(server, closed=True)
        assert [sub["subject"] for sub in subscriptions_of(server, gone)] == ["a.*", "b"]


async def test_subscriptions_by_account_and_subject() -> None:
    """All subscriptions are returned, or those that match a subject, or those of an account."""
    async with running() as server, Wire(server.port) as wire:
        wire.send(QUIET + b"SUB a.* 1\r\nSUB a.x q 2\r\nSUB > 3\r\nUNSUB 3 7\r\n")
        await wire.settled()

        def found(*asked: str) -> tuple[int, list[str]]:
            count, rows = subsz_rows(server, *asked)
            return count, sorted(row["sid"] for row in rows if row["cid"])

        assert found("$G")[1] == ["1", "2", "3"]
        assert found("", "a.x") == (3, ["1", "2", "3"])
        assert found("", "a.y") == (2, ["1", "3"])
        assert found("nobody") == (0, [])
