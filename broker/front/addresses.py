"""The places of the pages of which the supervisor's pages are made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from broker.front.configuration import Link

__all__ = ["Addresses"]


class Addresses(NamedTuple):
    """The places of the pages."""

    front: str
    """The URL of nats-server's pages, whose path is a secret, without a slash at its end."""
    address: Callable[[], Mapping[str, Any]]
    """Returns ``http_host``, ``http_port`` and ``https_port`` of the supervisor's pages."""
    workers: tuple[Link, ...]
    links: Callable[[], int]
    """Returns the number of leaf connections between nats-server and the workers."""
