"""The options of the sink: values, defaults, and what is refused by name."""

from __future__ import annotations

import pytest

from broker.pipeline.errors import BadOption
from broker.pipeline.write.options import WriteOptions
from broker.storage.format.request import Version

GIVEN = {"store": "file:///srv/streams", "stream": "ORDERS"}


def test_defaults_and_values() -> None:
    """Names are compared without regard to case; save(URL) is the store."""
    options = WriteOptions.parse({"path": "s3://bucket/prefix", "STREAM": "ORDERS"})
    assert options == WriteOptions("s3://bucket/prefix", "ORDERS")
    assert (options.account, options.waitforadoption, options.version) == ("$G", 300 * 10**9, None)
    options = WriteOptions.parse({
        **GIVEN, "nats": "nats://127.0.0.1:4222", "natsCreds": "user.creds", "txnAppId": "job", "txnVersion": "7",
        "waitForAdoption": "0", "times": "Raise", "actingHeaders": "strip", "splitCommits": "true",
        "createStream": '{"subjects": ["orders.>"]}'})
    assert options.version == Version("job", 7)
    assert (options.waitforadoption, options.times, options.actingheaders) == (0, "raise", "strip")
    assert options.createstream == {"subjects": ["orders.>"]}
    assert options.splitcommits
    assert "127.0.0.1" not in repr(options)


@pytest.mark.parametrize(("given", "text"), [
    ({"stream": None}, "option stream is needed"),
    ({"store": None}, "option store is needed"),
    ({"strem": "X"}, "no option 'strem': did you mean stream"),
    ({"stream": "A,*"}, "write the name of one stream"),
    ({"subjects": "a"}, "no option 'subjects'"),
    ({"txnAppId": "job"}, "txnAppId and txnVersion need each other"),
    ({"txnVersion": "1"}, "txnAppId and txnVersion need each other"),
    ({"txnAppId": "job", "txnVersion": "-1"}, "option txnVersion='-1': write a version, from 0"),
    ({"txnAppId": "a\nb", "txnVersion": "1"}, "without control characters"),
    ({"natsCreds": "x"}, "option natsCreds needs option nats"),
    ({"createStream": "{}"}, "option createStream needs option nats"),
    ({"createStream": "[]", "nats": "nats://x"}, "write the stream's configuration as JSON"),
    ({"createStream": '{"name": "OTHER"}', "nats": "nats://x"}, "its name is 'OTHER'"),
    ({"nats": "localhost:4222"}, "write the broker's URL"),
    ({"waitForAdoption": "5"}, "write a duration, as 30s, 5m or 0"),
    ({"times": "later"}, "allowed are refuse, raise, ignore"),
    ({"actingHeaders": "obey"}, "allowed are refuse, strip, apply"),
    ({"splitCommits": "yes"}, "allowed are true and false"),
])
def test_mistakes_are_named(given: dict[str, str | None], text: str) -> None:
    together = {name: value for name, value in {**GIVEN, **given}.items() if value is not None}
    with pytest.raises(BadOption, match=text):
        WriteOptions.parse(together)


def test_a_streaming_query_has_its_own_versions() -> None:
    """Spark passes its own options of a streaming query to the sink."""
    given = {**GIVEN, "txnAppId": "job", "checkpointLocation": "place", "queryName": "orders"}
    assert WriteOptions.parse(given, streaming=True).txnappid == "job"
    with pytest.raises(BadOption, match=r"no option 'checkpointLocation'.*no option 'queryName'"):
        WriteOptions.parse(given)
    with pytest.raises(BadOption, match="txnVersion is for batch writes"):
        WriteOptions.parse({**GIVEN, "txnVersion": "1"}, streaming=True)
