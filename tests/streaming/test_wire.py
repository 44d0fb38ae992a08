"""The generated classes of messages belong to the schema."""

from __future__ import annotations

import re
from pathlib import Path

from broker.streaming.wire import stan_pb2

_SCHEMA = Path(stan_pb2.__file__).with_name("stan.proto")


def test_the_classes_have_the_fields_of_the_schema() -> None:
    """If this fails, run docs/generators/streaming_protocol.py."""
    text = re.sub("//.*", "", _SCHEMA.read_text())
    schema = {name: {field: int(number) for field, number in re.findall(r"(\w+) = (\d+);", body)}
              for name, body in re.findall(r"(?:message|enum) (\w+) \{(.*?)\n\}", text, re.DOTALL)}
    classes = {name: {field.name: field.number for field in message.fields}
               for name, message in stan_pb2.DESCRIPTOR.message_types_by_name.items()}
    enums = {name: dict(enum.values_by_name.items()) for name, enum in stan_pb2.DESCRIPTOR.enum_types_by_name.items()}
    assert schema == classes | {name: {value: one.number for value, one in values.items()}
                                for name, values in enums.items()}
