"""A console process for tests."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from tests.harness import free_port

__all__ = ["console", "started"]


async def started(*arguments: str, environ: Mapping[str, str] | None = None) -> asyncio.subprocess.Process:
    """Start ``jetblock console`` with these arguments."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}  # NiceGUI's tests
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "broker", "console", *arguments, env=inherited | {**(environ or {})},
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE)


@asynccontextmanager
async def console(*arguments: str) -> AsyncIterator[str]:
    """Run a console on a free port; yield its address once it accepts connections."""
    port = free_port()
    process = await started("--port", str(port), *arguments)
    try:
        assert process.stdout is not None
        async with asyncio.timeout(60):
            line = (await process.stdout.readline()).decode()
            found = re.search(r"http://[^ ]+", line)
            assert found, line + (await process.stderr.read()).decode() if process.stderr else line
            while True:
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                except ConnectionRefusedError:
                    assert process.returncode is None
                    await asyncio.sleep(0.05)
                else:
                    writer.close()
                    break
        yield found[0]
    finally:
        if process.returncode is None:
            process.terminate()
        async with asyncio.timeout(60):
            await process.communicate()
