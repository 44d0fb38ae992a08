"""Messages delivered by reference: fetching them from the store."""

from broker.client.references import DELIVER, REFERENCE, BadReference, fetched

__all__ = ["DELIVER", "REFERENCE", "BadReference", "fetched"]
