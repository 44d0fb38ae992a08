"""jetblock: a NATS and JetStream server whose only disk is an object store."""

__version__ = "0.1.0"
