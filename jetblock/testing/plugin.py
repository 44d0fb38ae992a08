"""The pytest plugin, which pytest finds by itself where jetblock is installed.

    def test_orders(nats_broker):
        application = start(nats_broker.url)
        nats_broker.restart()                       # clients reconnect and find their streams

    @pytest.mark.nats_broker("memory://", settings={"auth.user": "app", "auth.password": "secret"})
    async def test_login(nats_broker): ...
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from jetblock.testing import BrokerThread

__all__ = ["nats_broker"]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "nats_broker(store, *, host, port, settings, standby): the arguments of "
                                       "jetblock.Broker for the fixture nats_broker")


@pytest.fixture
def nats_broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BrokerThread]:
    """A running broker on a free port: ``url``, ``stop()``, ``start()``, ``restart()``.

    Its streams are in a directory of this test unless the marker ``nats_broker`` names another store.
    """
    marker = request.node.get_closest_marker("nats_broker")
    args, options = (marker.args, dict(marker.kwargs)) if marker else ((), {})
    if not args:
        options.setdefault("store", tmp_path / "nats_broker")
    with BrokerThread(*args, **options) as broker:
        yield broker
