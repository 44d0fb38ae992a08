"""A reader of the site's pages in a fresh checkout, and the stores that pages name."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import nats

from tests.docs.snippets import Reader, folder_of_a_checkout
from tests.harness import BrokerProcess, ServerProcess, free_port

__all__ = ["DOCS", "ROOT", "page", "publish_orders", "reader", "store_orders"]

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def page(name: str) -> str:
    return (DOCS / name).read_text()


def reader(folder: Path, replaced: Mapping[str, str] | None = None, stand_ins: Mapping[str, str] | None = None,
           environ: Mapping[str, str] | None = None) -> Reader:
    """Return a reader in a checkout with an activated environment; free ports replace a broker's usual ones."""
    port, http_port = str(free_port()), str(free_port())
    path = f"{folder / '.venv' / 'bin'}:{os.environ['PATH']}"
    variables = {"PATH": path, "PORT": port, "HTTP_PORT": http_port, "JETBLOCK_RESERVE": "256kb", **(environ or {})}
    ports = {"127.0.0.1:4222": f"127.0.0.1:{port}", "127.0.0.1:8222": f"127.0.0.1:{http_port}"}
    return Reader(folder_of_a_checkout(folder, ROOT), variables, ports | dict(replaced or {}), stand_ins)


async def publish_orders(server: ServerProcess) -> None:
    """Create the stream ORDERS with a durable consumer and six messages: orders.eu.0, orders.eu.1, orders.eu.0, …"""
    client = await nats.connect(server.url)
    js = client.jetstream()
    await js.add_stream(name="ORDERS", subjects=["orders.>"])
    for number in range(6):
        await js.publish(f"orders.eu.{number % 2}", b"order %d" % number)
    await js.pull_subscribe("orders.>", durable="billing")
    await client.close()


async def store_orders(store: str, environ: Mapping[str, str] | None = None) -> None:
    """Make a store with the stream ORDERS, on which no broker runs."""
    async with BrokerProcess("--store", store, environ=environ) as broker:
        await publish_orders(broker)
        assert await broker.stop() == 0
