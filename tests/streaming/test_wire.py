"""The generated classes of messages belong to the schema, and the fast encoders to protobuf."""

from __future__ import annotations

import random
import re
from pathlib import Path

from broker.protocol.run import Msg
from broker.streaming.wire import stan_pb2
from broker.streaming.wire.encoding import MsgEncoder, ack_seqs, ack_start, by_subject, pub_ack, pub_msg, pub_run

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
        assert pub_ack(guid.encode()) == stan_pb2.PubAck(guid=guid).SerializeToString()


def test_runs_are_encoded_as_their_messages() -> None:
    """A run is the same bytes as its messages, one by one."""
    encoder, seqs = MsgEncoder("c"), range(120, 140)
    times, bodies, delivered = [seq << 40 for seq in seqs], [b"x" * seq for seq in seqs], [seq % 3 for seq in seqs]
    assert encoder.encode_run(seqs, times, bodies, delivered) == [
        encoder.encode(*one) for one in zip(seqs, times, bodies, delivered, strict=True)]


def test_acks_are_decoded_as_protobuf_decodes_them() -> None:
    """The fast decoder finds the sequence of usual acks, and leaves all others to protobuf."""
    start = ack_start("orders")
    seqs = [1, 127, 128, 16_384, (1 << 28) - 1]
    usual = [stan_pb2.Ack(subject="orders", sequence=seq).SerializeToString() for seq in seqs]
    assert ack_seqs(usual, start) == seqs
    one = stan_pb2.Ack(subject="orders", sequence=300).SerializeToString()
    for body in (b"", one[:-1], one + b"\x10\x01", one + b"\x01", start, one[9:] + one[:9],
                 stan_pb2.Ack(subject="other", sequence=300).SerializeToString(),
                 stan_pb2.Ack(subject="orders", sequence=1 << 28).SerializeToString()):
        assert ack_seqs([body], start) == [0], body


def test_publishes_are_decoded_as_protobuf_decodes_them() -> None:
    """The fast decoder finds the fields of usual publishes of any size; damaged ones are left to protobuf, or agree."""
    rng = random.Random(2)
    for size in (0, 1, 127, 128, 16_383, 16_384, 100_000, (1 << 21) - 1):
        msg = stan_pb2.PubMsg(client_id="me", guid="g" * rng.choice((1, 22, 300)), subject="orders.new",
                              reply=rng.choice(("", "answer")), data=rng.randbytes(size),
                              conn_id=rng.randbytes(rng.choice((0, 22))), sha256=b"1" * rng.choice((0, 32)))
        assert pub_msg(b"head" + msg.SerializeToString(), 4) == _fields(msg)
    whole = stan_pb2.PubMsg(client_id="me", guid="guid", subject="orders", reply="r", data=b"\xff", conn_id=b"\xfe"
                            ).SerializeToString()
    damaged = [whole[:cut] for cut in range(len(whole))]
    for _ in range(3000):
        body = bytearray(whole)
        for _ in range(rng.randrange(1, 4)):
            body[rng.randrange(len(body))] = rng.choice((0, 1, 0x0A, 0x12, 0x1A, 0x80, 0xFF, rng.randrange(256)))
        damaged.append(bytes(body))
    agreed = 0
    for body in damaged:
        found = pub_msg(body, 0)
        if found is not None:
            agreed += 1
            assert found == _fields(stan_pb2.PubMsg.FromString(body)), body
    assert agreed
    for left in (stan_pb2.PubMsg(subject="ü"), stan_pb2.PubMsg(data=b"x" * (1 << 21))):
        assert pub_msg(left.SerializeToString(), 0) is None


def test_a_run_of_publishes_is_decoded_as_protobuf_decodes_each() -> None:
    """A run has the messages that differ in guid and data only; whatever else is changed in one of them ends it."""
    rng = random.Random(3)
    usual = stan_pb2.PubMsg(client_id="me", guid="g" * 22, subject="orders.new", data=b"d", conn_id=b"\xfe" * 22)

    def msg(**fields: object) -> bytes:
        """Return a publish; fields that are not named are the usual ones."""
        one = stan_pb2.PubMsg()
        one.CopyFrom(usual)
        for name, value in fields.items():
            setattr(one, name, value)
        return one.SerializeToString()

    sizes = (1, 127, 128, 16_383)
    bodies = [msg(guid=f"{number:022}", data=rng.randbytes(rng.choice(sizes))) for number in range(20)]
    fields, msgs, end = pub_run(_ops(bodies), 3, 20)
    assert (fields, end) == (_fields(stan_pb2.PubMsg.FromString(bodies[3])), 20)
    assert msgs == [_stored(body) for body in bodies[3:]]
    other_ends = [msg(guid="g" * 21), msg(guid="ü" * 11), msg(subject="orders.old"), msg(client_id="you"),
                  msg(conn_id=b"\xfd" * 22), msg(conn_id=b""), msg(reply="r"), msg(data=b""), msg(sha256=b"s"),
                  msg(data=b"d" * 16_384), msg() + msg(), msg()[:-1], b""]
    for body in other_ends:
        assert pub_run(_ops([bodies[0], body, bodies[1]]), 0, 3)[1:] == ([_stored(bodies[0])], 1), body
    for ops in ([(b"pub", b"acks", 0, bodies[0]), (b"pub", b"other", 0, bodies[1])],
                [(b"pub", b"acks", 4, b"head" + bodies[0]), (b"pub", b"acks", 4, b"head" + bodies[1])]):
        assert pub_run(ops, 0, 2)[1:] == ([_stored(bodies[0])], 1)
    agreed = 0
    for _ in range(20_000):
        body = bytearray(rng.choice(bodies[:4]))
        for _ in range(rng.randrange(1, 4)):
            body[rng.randrange(len(body))] = rng.choice((0, 1, 0x12, 0x2A, 0x80, 0xFF, rng.randrange(256)))
        _, msgs, end = pub_run(_ops([bodies[0], bytes(body)]), 0, 2)
        if end == 2:
            agreed += 1
            assert msgs[1] == _stored(bytes(body))
            found = stan_pb2.PubMsg.FromString(bytes(body))
            assert (found.client_id, found.subject, found.reply, found.conn_id, found.sha256) == (
                usual.client_id, usual.subject, "", usual.conn_id, b""), body
    assert agreed


def test_acks_are_split_by_their_inboxes() -> None:
    """The bodies of each inbox stay in order, and have no headers."""
    ops = [(b"a", b"", 0, b"1"), (b"a", b"r", 1, b"h2"), (b"b", b"", 0, b"3"), (b"a", b"", 0, b"4")]
    assert by_subject(ops, 0, 4) == {b"a": [b"1", b"2", b"4"], b"b": [b"3"]}
    assert by_subject(ops, 1, 3) == {b"a": [b"2"], b"b": [b"3"]}


def _ops(bodies: list[bytes]) -> list[Msg]:
    return [(b"pub", b"acks", 0, body) for body in bodies]


def _stored(body: bytes) -> Msg:
    """Return what ``pub_run`` returns for a publish."""
    msg = stan_pb2.PubMsg.FromString(body)
    return msg.subject.encode(), stan_pb2.PubAck(guid=msg.guid).SerializeToString(), 0, msg.data


def _fields(msg: stan_pb2.PubMsg) -> tuple[bytes, ...]:
    return (msg.client_id.encode(), msg.guid.encode(), msg.subject.encode(), msg.reply.encode(), msg.data, msg.conn_id)
