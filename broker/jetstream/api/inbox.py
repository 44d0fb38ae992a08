"""JETBLOCK.ADOPT of $JS.API: carries out a request in the shard's inbox at once, and answers the program that put it
there.

An addition of jetblock: nats-server has nothing like it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from broker.base.gotime import format_time
from broker.jetstream.api.request import Request, Route
from broker.jetstream.wire import fields as wire
from broker.jetstream.wire.error_table import ApiErrors
from broker.jetstream.wire.errors import ApiError
from broker.storage.format.request import Version

__all__ = ["ROUTES"]

_ID: Final = re.compile(r"[0-9a-f]{16}", re.ASCII)


@dataclass(slots=True)
class _AdoptRequest:
    """Names a request by its id, or by its writer and version."""

    request: str = wire.text()
    writer: str = wire.text()
    version: int = wire.int64()


async def adopt(request: Request) -> dict[str, Any]:
    """Let the staged messages of a request join the stream; answer after they have joined."""
    await request.need_body()
    asked = await request.body(_AdoptRequest, "JSApiJetblockAdoptRequest")
    stream, version = request.stream(request.tokens[2]), None
    if asked.writer and not asked.request:
        version = Version(asked.writer, asked.version)
        if version.flaw() is not None:
            raise ApiError(ApiErrors.BAD_REQUEST)
        request_id = version.request_id(stream.stream_id)
    elif _ID.fullmatch(asked.request) and not asked.writer:
        request_id = int(asked.request, 16)
    else:
        raise ApiError(ApiErrors.BAD_REQUEST)
    answer = await request.account.carry_out(request_id, stream, version)
    return {"request": f"{request_id:016x}", **answer.to_json(), "adopted": format_time(answer.at_ns),
            "ts": format_time(request.account.clock.now_ns())}


ROUTES: dict[tuple[str, ...], Route] = {
    ("JETBLOCK", "ADOPT", "*"): Route("jetblock_adopt_response", adopt, apart=True),
}
"""The routes by subject after $JS.API; ``*`` is any token."""
