"""Streams moved here from a nats-server: from a running one over its API, or from folders of ``nats stream backup``."""
