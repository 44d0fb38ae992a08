"""The generated classes of messages belong to the schema, and the fast encoders to protobuf."""

from __future__ import annotations

import random
import re
from pathlib import Path

from broker.streaming.wire import stan_pb2
from broker.streaming.wire.encoding import MsgEncoder, ack_seq, ack_start, pub_ack

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


def test_the_fast_encoders_write_what_protobuf_writes() -> None:
    """PubAcks and messages of any size, sequence and time are the same bytes; protobuf leaves out empty fields."""
    rng = random.Random(1)
    numbers = [1, 127, 128, 16_383, 16_384, (1 << 21) - 1, 1 << 21, 1 << 28, 1 << 35, (1 << 63) - 1]
    numbers += [rng.randrange(1, 1 << rng.randrange(1, 63)) for _ in range(300)]
    for channel in ("c", "orders.new", "ü" * 70):
        encoder = MsgEncoder(channel)
        for seq in numbers:
            time_ns, count = rng.randrange(1 << 28, 1 << 62), rng.choice((1, 1, 2, 300))
            data, reply = rng.randbytes(rng.choice((0, 1, 127, 128, 20_000))), rng.choice(("", "answer.ü"))
            assert encoder.encode(seq, time_ns, data, count, reply.encode()) == stan_pb2.MsgProto(
                sequence=seq, subject=channel, reply=reply, data=data, timestamp=time_ns, redelivered=count > 1,
                redelivery_count=count - 1).SerializeToString()
    for guid in ("", "x", "ü" * 100, "g" * 20_000):
        assert pub_ack(guid) == stan_pb2.PubAck(guid=guid).SerializeToString()


def test_acks_are_decoded_as_protobuf_decodes_them() -> None:
    """The fast decoder finds the sequence of usual acks, and leaves all others to protobuf."""
    start = ack_start("orders")
    for seq in (1, 127, 128, 16_384, (1 << 28) - 1):
        assert ack_seq(stan_pb2.Ack(subject="orders", sequence=seq).SerializeToString(), start) == seq
    usual = stan_pb2.Ack(subject="orders", sequence=300).SerializeToString()
    for body in (b"", usual[:-1], usual + b"\x10\x01", usual + b"\x01", start, usual[9:] + usual[:9],
                 stan_pb2.Ack(subject="other", sequence=300).SerializeToString(),
                 stan_pb2.Ack(subject="orders", sequence=1 << 28).SerializeToString()):
        assert ack_seq(body, start) == 0, body
