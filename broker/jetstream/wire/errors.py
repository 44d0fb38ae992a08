"""JetStream's errors as exceptions: raise one with its err_code, and the API replies with nats-server's code and text.

The table is generated (error_table.py names its source). Errors of the protocol and of the object store have types of
their own, because they are handled differently.
"""

from __future__ import annotations

from broker.jetstream.wire.error_table import ERROR_TABLE, ApiErrors

__all__ = ["ApiError", "invalid_config", "invalid_json"]


class ApiError(Exception):
    """An error of nats-server's JetStream.

    Args: ``err_code`` is one of ``ApiErrors``; ``words`` fill the ``{word}`` placeholders of its description, as in
        ``ApiError(ApiErrors.STREAM_WRONG_LAST_SEQUENCE, seq=7)``.
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
        """Return the ``error`` member of a response or PubAck."""
        return {"code": self.code, "err_code": self.err_code, "description": self.description}

    def __reduce__(self) -> tuple[object, ...]:
        return (ApiError.of, (self.err_code, self.description))

    @staticmethod
    def of(err_code: int, description: str) -> ApiError:
        """Return an error whose description is known already."""
        error = ApiError(err_code)
        error.description = description
        error.args = (description,)
        return error


def invalid_json(reason: object) -> ApiError:
    """Return 10025 with the decoder's complaint."""
    return ApiError(ApiErrors.INVALID_JSON, err=reason)


def invalid_config(reason: str) -> ApiError:
    """Return 10052: an invalid stream (or consumer) configuration."""
    return ApiError(ApiErrors.STREAM_INVALID_CONFIG, err=reason)
