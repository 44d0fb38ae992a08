"""Brokers for the tests of other programs: ``BrokerThread``, and the pytest fixture ``nats_broker`` (``plugin``)."""

from broker.runtime.broker_thread import BrokerThread

__all__ = ["BrokerThread"]
