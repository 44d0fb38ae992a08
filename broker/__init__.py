"""jetblock: a NATS and JetStream server whose only disk is an object store."""

from broker.compiled import use_build

__version__ = "0.1.0"

NATS_SERVER_VERSION = "2.15.1"
"""The nats-server whose behaviour this is; clients and their launchers decide by it which features they use."""

JETSTREAM_API_LEVEL = 5
"""JetStream API level of that nats-server: what clients may ask for by ``Nats-Required-Api-Level``."""

COMPILED = use_build()
"""Flag: the modules that ``broker.compiled`` names run as machine code, not as Python."""
