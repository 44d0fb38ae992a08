"""jetblock: a NATS and JetStream server whose only disk is an object store.

This package has the names for other programs. Everything below ``broker`` (``jetblock._broker`` in an installed wheel)
is internal, and changes without notice.

    jetblock            Broker: a broker inside this program, on its event loop
                        scan: a stream's messages as Arrow batches, read from the store, with no broker
    jetblock.testing    BrokerThread: a broker for programs without asyncio; a pytest plugin with the fixture
                        nats_broker
    jetblock.store      reading streams from the store, with no broker
    jetblock.staging    messages that are put beside a stream, to join it later
    jetblock.references  messages delivered by reference, read from the bucket
    jetblock.spark      helpers for a Spark session
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker import __version__

if TYPE_CHECKING:
    from broker.base.errors import StartError, StoreInUse
    from broker.config.settings import ConfigError
    from broker.pipeline.read.reader import scan
    from broker.runtime.embedded import Broker

__all__ = ["Broker", "ConfigError", "StartError", "StoreInUse", "__version__", "scan"]


def __getattr__(name: str) -> Any:
    # The server is imported on first use: Spark, the command line and each run of pytest import this package without
    # it.
    if name == "Broker":
        from broker.runtime.embedded import Broker
        return Broker
    if name == "ConfigError":
        from broker.config.settings import ConfigError
        return ConfigError
    if name in ("StartError", "StoreInUse"):
        from broker.base import errors
        return getattr(errors, name)
    if name == "scan":
        try:
            from broker.pipeline.read.reader import scan
        except ModuleNotFoundError as error:
            raise ImportError(f"jetblock.scan needs {error.name}: install jetblock with its extra [arrow]") from None
        return scan
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
