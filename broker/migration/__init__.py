"""Migration: streams are moved from a nats-server, over its API, or from folders of ``nats stream backup``."""
