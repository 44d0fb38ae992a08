"""A stopped nats-server's ``store_dir`` as the source: the real nats-server serves it on loopback during the move.

The file formats of nats-server are internal, and its snapshots are an API. So the binary is run, with a
configuration that has one account of the directory and one user, and ended after the move. Each run has one account,
because JetStream of the default account is on only if no other account is configured.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from broker.access.accounts import DEFAULT_ACCOUNT
from broker.base.nats_server_store import NatsServerStore
from broker.migration.errors import CannotMigrate

__all__ = ["StoreDirServer"]

_POLL_SECONDS = 0.05
_VERSION_MIN = (2, 15)
_PORT = 4333


class StoreDirServer:
    """A nats-server that this process runs on a store_dir, for one account. Call ``start``, then ``stop``."""

    user = "migrate"

    def __init__(self, store: NatsServerStore, account: str, target: str) -> None:
        self._store = store
        self._account = account
        self._target = target
        self.password = secrets.token_hex(16)
        self._process: asyncio.subprocess.Process | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self.url = ""

    async def start(self) -> None:
        """Start the server, and return when clients can connect. Raises: CannotMigrate."""
        store = self._store
        if store.encrypted:
            raise CannotMigrate(f"{store}, and it is encrypted: start that nats-server with its own configuration, and "
                                f"give its URL (nats://…) as the source")
        for pid in _users(store.store_dir):
            raise CannotMigrate(f"{store}, and process {pid} has files of it open: give that server's URL (nats://…) "
                                f"as the source, or stop it first")
        binary = await asyncio.to_thread(_binary)
        if not binary:
            raise CannotMigrate(f"{store}; only nats-server {'.'.join(map(str, _VERSION_MIN))} or newer can read it, "
                                f"and none is on PATH. On a machine that has one, run:\n{self._commands()}")
        self._folder = tempfile.TemporaryDirectory(prefix="jetblock-migrate-")
        folder = Path(self._folder.name)
        await asyncio.to_thread((folder / "nats-server.conf").write_text, self._configuration(folder))
        with (folder / "log").open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                binary, "-c", str(folder / "nats-server.conf"), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True)  # an interrupt ends only this process, which then ends the server
        ports = folder / f"nats-server_{self._process.pid}.ports"
        while not ports.exists() or not ports.read_bytes().endswith(b"}"):
            if self._process.returncode is not None:
                lines = (folder / "log").read_text("utf-8", "replace").strip().splitlines()
                raise CannotMigrate(f"{store}; nats-server could not serve it: "
                                    f"{lines[-1] if lines else 'its log is empty'}")
            await asyncio.sleep(_POLL_SECONDS)
        self.url = json.loads(ports.read_bytes())["nats"][0]

    def _commands(self) -> str:
        """Return the commands that do the same by hand."""
        if list(self._store.streams) == [DEFAULT_ACCOUNT]:
            return (f"  nats-server -a 127.0.0.1 -p {_PORT} -js -sd {self._store.store_dir}\n"
                    f"  jetblock migrate nats://127.0.0.1:{_PORT} {self._target}")
        return (f"  nats-server -c ITS_CONFIGURATION -a 127.0.0.1 -p {_PORT}\n"
                f"  jetblock migrate nats://USER:PASSWORD@127.0.0.1:{_PORT} {self._target}     for each of the "
                f"accounts {', '.join(self._store.streams)}")

    def _configuration(self, folder: Path) -> str:
        user = {"user": self.user, "password": self.password}
        login: dict[str, Any] = ({"authorization": user} if self._account == DEFAULT_ACCOUNT else
                                 {"accounts": {self._account: {"jetstream": "enabled", "users": [user]}}})
        # JSON is valid in nats-server's language. Streams that reserve more than this disk has must be read, too.
        return json.dumps({
            "listen": "127.0.0.1:-1", "ports_file_dir": str(folder), **login,
            "jetstream": {"store_dir": str(self._store.store_dir), "max_file_store": 1 << 60,
                          "max_memory_store": 1 << 60}})

    async def stop(self) -> None:
        """End the server cleanly."""
        process, self._process = self._process, None
        if process is not None:
            if process.returncode is None:
                process.terminate()
            await process.wait()
        if self._folder is not None:
            self._folder.cleanup()


def _binary() -> str:
    """Find a nats-server that is new enough; "" if there is none. A jetblock under that name does not count."""
    beside = str(Path(sys.executable).parent)
    for found in dict.fromkeys((shutil.which("nats-server"), shutil.which("nats-server", path=beside))):
        if found is None:
            continue
        try:
            text = subprocess.run([found, "--version"], capture_output=True, text=True, timeout=30, check=False).stdout
            version = tuple(map(int, text.split()[1].removeprefix("v").split("-")[0].split(".")[:2]))
        except (OSError, ValueError, IndexError, subprocess.TimeoutExpired):
            continue
        if version >= _VERSION_MIN and "jetblock" not in text:
            return found
    return ""


def _users(directory: Path) -> Iterator[str]:
    """Yield the ids of processes that have files below the directory open, as far as /proc shows them."""
    inside = os.path.join(os.path.realpath(directory), "")
    for descriptors in Path("/proc").glob("[0-9]*/fd"):
        try:
            if any(os.readlink(descriptor).startswith(inside) for descriptor in descriptors.iterdir()):
                yield descriptors.parent.name
        except OSError:  # the process has ended, or belongs to another user
            continue
