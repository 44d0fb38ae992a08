"""Streams sent as archives, and restored from them: the transfer over the bus, in chunks that the other side acks."""
