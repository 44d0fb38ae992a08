"""Both servers with one configuration: the real nats-server first, jetblock second."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import tempfile
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from broker.config.flags import read_flags
from broker.config.load import load
from broker.config.settings import ConfigError
from tests.fuzz.scenario import Config
from tests.harness import BrokerProcess, NatsServerProcess, ServerFailed, ServerProcess

__all__ = ["FENCE", "Pair", "Server", "own_refusal", "refusals", "rendered"]

FENCE = "FENCE"
"""The name of an account and of its user that belong to the player, and not to the scenario."""

_RELOADED = r"\[INF\] Reloaded server configuration|\[ERR\] Failed to reload|\[ERR\] .*reload"


def rendered(config: Config) -> str:
    """Return a configuration file with the player's own account. The file language contains JSON."""
    config = {"server_name": "s", **config}
    accounts, authorization = config.get("accounts", {}), config.get("authorization")
    by_account = "accounts" in config or (isinstance(authorization, dict) and "users" in authorization)
    if isinstance(accounts, dict) and by_account:
        accounts = {name: _with_cleaner(name, account) for name, account in accounts.items()}
        config["accounts"] = {**accounts, FENCE: {"users": [{"user": FENCE, "password": FENCE}]}}
    lines = [f"{json.dumps(name)}: {_value(value)}" for name, value in config.items()]
    return "\n".join(lines) + "\n"


def _with_cleaner(name: str, account: Any) -> Any:
    """Return ``account`` with a user of the player, if it has JetStream: this user removes the streams of earlier
    scenarios."""
    if not isinstance(account, dict) or "jetstream" not in account or name.startswith("F"):
        return account
    return {**account, "users": [*account.get("users", []), {"user": f"{FENCE}.{name}", "password": FENCE}]}


def _value(value: Any) -> str:
    return json.dumps(value, indent=1)


@lru_cache(maxsize=64)
def own_refusal(config: str) -> str:
    """Return the reason for which jetblock refuses the configuration, given as JSON; "" if it accepts it."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "x.conf"
        path.write_text(rendered(json.loads(config)))
        try:
            load(read_flags(["-c", str(path)]), {})
        except ConfigError as error:
            return str(error).replace(f"{path}", "x.conf")
    return ""


async def refusals(config: Config) -> tuple[str, str]:
    """Return the reason for which each server refuses the configuration; "" if it accepts it."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "x.conf"
        path.write_text(rendered(config))
        process = await asyncio.create_subprocess_exec(
            *NatsServerProcess.command, "-t", "-c", str(path),
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT)
        output, _ = await process.communicate()
        theirs = output.decode().replace(f"{path}", "x.conf").strip() if process.returncode else ""
        ours = own_refusal(json.dumps(config))
        if bool(ours) != bool(theirs):
            # ``-t`` leaves out the checks of nats-server's start, and refuses a file with mere warnings.
            server = NatsServerProcess("-c", str(path), monitor=False)
            try:
                async with server:
                    theirs = ""
            except ServerFailed:
                theirs = theirs or server.tail(1).strip()
    return theirs, ours


class Server:
    """Either of the two servers, with a configuration file that can be changed while it runs."""

    def __init__(self, kind: Callable[..., ServerProcess], directory: Path, *flags: str) -> None:
        self._path = directory / "x.conf"
        self._flags = flags
        self.process = kind("-c", str(self._path), *flags, monitor=False)

    async def start(self, config: Config) -> None:
        self._path.write_text(rendered(config))
        await self.process.start()

    async def reload(self, config: Config) -> str:
        """Let the server read another configuration; return "" or the error that it logs."""
        self._path.write_text(rendered(config))
        self.process.stderr.clear()
        self.process.send_signal(signal.SIGHUP)
        line = await self.process.wait_line(_RELOADED)
        text = line.string.rstrip("\n")
        return "" if "Reloaded" in line[0] else text[text.index("["):].replace(str(self._path), "x.conf")

    @property
    def port(self) -> int:
        return self.process.port


class Pair:
    """The real server and jetblock, running. ``{store}`` in ``flags`` becomes a directory of each server."""

    def __init__(self, config: Config, *flags: str) -> None:
        self.config = config
        self.flags = flags or (("-sd", "{store}") if "jetstream" in config else ())
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        base = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="jetblock-fuzz-", dir=_fast())))
        kinds: tuple[Callable[..., ServerProcess], ...] = (NatsServerProcess, BrokerProcess)
        self.servers: list[Server] = []
        for number, kind in enumerate(kinds):
            directory = base / str(number)
            directory.mkdir()
            self.servers.append(Server(kind, directory, *(flag.replace("{store}", str(directory / "store"))
                                                          for flag in self.flags)))
            self._stack.push_async_callback(self.servers[-1].process.close)
        try:
            await asyncio.gather(*(server.start(self.config) for server in self.servers))
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        trace: TracebackType | None) -> None:
        await self._stack.aclose()


def _fast() -> str | None:
    """Return a directory in memory, if the machine has one: stores of a scenario need no disk."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
