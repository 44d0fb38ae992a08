"""JetStream's errors as exceptions: raise one with its err_code, and the API answers with nats-server's code and text.

The table is generated (error_table.py names its source). Errors of the protocol and of the object store have types of
their own, since they are handled differently.
"""

from __future__ import annotations

from typing import Final

from broker.jetstream.wire.error_table import ERROR_TABLE

__all__ = ["BAD_REQUEST", "CONSUMER_NOT_FOUND", "INVALID_CONFIG", "INVALID_JSON", "NOT_AVAILABLE", "STREAM_NOT_FOUND",
           "STREAM_OFFLINE", "ApiError", "invalid_config", "invalid_json"]

BAD_REQUEST: Final = 10003
NOT_AVAILABLE: Final = 10008
CONSUMER_NOT_FOUND: Final = 10014
INVALID_JSON: Final = 10025
INVALID_CONFIG: Final = 10052
STREAM_NOT_FOUND: Final = 10059
STREAM_OFFLINE: Final = 10194


class ApiError(Exception):
    """One of nats-server's JetStream errors.

    Args: ``err_code`` from the table; ``words`` fill the ``{word}`` placeholders of its description, as in
        ``ApiError(10071, seq=7)``.
    Attributes: ``code`` is HTTP-like (often an unexpected one: 10052 is a 500).
    """

    __slots__ = ("code", "description", "err_code")

    def __init__(self, err_code: int, **words: object) -> None:
        self.err_code = err_code
        self.code, text = ERROR_TABLE[err_code]
        for word, value in words.items():
            text = text.replace("{" + word + "}", str(value))
        self.description = text
        super().__init__(text)

    def to_json(self) -> dict[str, object]:
        """The ``error`` member of a response or PubAck."""
        return {"code": self.code, "err_code": self.err_code, "description": self.description}

    def __reduce__(self) -> tuple[object, ...]:
        return (ApiError.of, (self.err_code, self.description))

    @staticmethod
    def of(err_code: int, description: str) -> ApiError:
        """One whose description is known already."""
        error = ApiError(err_code)
        error.description = description
        error.args = (description,)
        return error


def invalid_json(reason: object) -> ApiError:
    """10025 with the decoder's complaint."""
    return ApiError(INVALID_JSON, err=reason)


def invalid_config(reason: str) -> ApiError:
    """10052: an invalid stream (or consumer) configuration."""
    return ApiError(INVALID_CONFIG, err=reason)
