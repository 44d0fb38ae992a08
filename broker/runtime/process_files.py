"""The files by which other programs find this process: its pid file and its ports file.

Other programs may read both at any moment, so each is written to a temporary file and renamed.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["PortsFile", "urls", "write_pid_file"]


def write_pid_file(path: str) -> None:
    """Write the process id without a newline, since not every reader strips one. Raises: OSError."""
    _write_whole(Path(path), str(os.getpid()))


class PortsFile:
    """``nats-server_PID.ports`` in a directory: URLs by kind, as JSON. Programs that start a broker expect
    nats-server's name."""

    def __init__(self, directory: str) -> None:
        self.path = Path(directory, f"nats-server_{os.getpid()}.ports")

    def write(self, ports: Mapping[str, Sequence[str]]) -> None:
        """Write ``ports``, such as ``{"nats": ["nats://127.0.0.1:4222"]}``. Raises: OSError."""
        _write_whole(self.path, json.dumps(ports))

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)


def urls(scheme: str, host: str, port: int) -> list[str]:
    """Return the URLs of one listener: its address, or the addresses of this machine if it listens on all.

    The loopback address comes first: readers take the first entry.
    """
    hosts = [host]
    if host in ("0.0.0.0", "::", ""):
        hosts = ["127.0.0.1", *(["::1"] if host == "::" else []), *_own_addresses()]
    return [f"{scheme}://{f'[{name}]' if ':' in name else name}:{port}" for name in dict.fromkeys(hosts)]


def _own_addresses() -> list[str]:
    """Return the source address of outgoing packets; asking a name server could take seconds."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # TEST-NET-1; connecting a datagram socket sends nothing
            return [str(probe.getsockname()[0])]
        except OSError:
            return []


def _write_whole(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, "ascii")
    try:
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
