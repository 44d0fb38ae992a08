"""For a text that is no URL of a store, the URL that was meant is proposed, or none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from broker.base.store_url import parse_store_url, proposal
from broker.config.flags import read_flags
from broker.config.load import load
from broker.config.settings import ConfigError

HOME = os.path.expanduser("~")


@pytest.mark.parametrize(("text", "proposed"), [
    ("bucket/prefix", "file://bucket/prefix for a directory, or s3://bucket/prefix for a bucket"),
    ("data", "file://data for a directory, or s3://data for a bucket"),
    ("./data", "file://./data"), ("/var/lib/data", "file:///var/lib/data"), ("~/data", f"file://{HOME}/data"),
    ("two words/x", "file://two words/x"),
    ("s3:/bucket", "s3://bucket"), ("s3:bucket/x", "s3://bucket/x"), ("S3://bucket/x", "s3://bucket/x"),
    ("s3a://bucket/x", "s3://bucket/x"), ("s3:/key:secret@bucket", "s3://bucket"), ("s3:", "s3://BUCKET/PREFIX"),
    ("file:/data", "file:///data"), ("file:data", "file://data"), ("FILE:///data", "file:///data"),
    ("http://key:secret@minio:9000/bucket", "s3://BUCKET/PREFIX with AWS_ENDPOINT_URL=http://minio:9000"),
    ("nats://127.0.0.1", "file:///dir or s3://bucket/prefix"), ("gs://bucket", "file:///dir or s3://bucket/prefix"),
    ("memory:", "memory://"),
])
def test_proposals(text: str, proposed: str) -> None:
    """The command line, the environment and the parser of URLs propose the same, and show no secret."""
    assert proposal(text) == proposed
    with pytest.raises(ValueError) as refused:
        parse_store_url(text)
    assert str(refused.value).endswith(f"; try {proposed}")
    assert "secret" not in str(refused.value)
    for words, environ in ((["--store", text], {}), ([], {"JETBLOCK_STORE": text})):
        with pytest.raises(ConfigError) as wrong:
            load(read_flags(words), environ)
        assert str(wrong.value).endswith(f"; try {proposed}")
        assert "secret" not in str(wrong.value)


@pytest.mark.parametrize("flag", ["-sd", "--store_dir"])
def test_a_bucket_as_a_directory(flag: str, tmp_path: Path) -> None:
    """``-sd s3://bucket/x``, which would make a folder named ``s3:``, is refused, in a file, too."""
    with pytest.raises(ConfigError, match="takes a directory, not the URL 's3://bucket/x'; try --store s3://bucket/x"):
        load(read_flags(["-js", flag, "s3://bucket/x"]), {})
    (tmp_path / "x.conf").write_text('jetstream { store_dir: "s3:/bucket/x" }')
    with pytest.raises(ConfigError, match=r'try jetblock \{ store: "s3://bucket/x" \}'):
        load(read_flags(["-c", str(tmp_path / "x.conf")]), {})


def test_the_home_directory() -> None:
    """``file://~/data``, which would make a folder named ``~``, is refused."""
    with pytest.raises(ConfigError, match=f"write {HOME}/data"):
        load(read_flags(["--store", "file://~/data"]), {})
    with pytest.raises(ValueError, match=f"write file://{HOME}/data"):
        parse_store_url("file://~/data")


def test_an_empty_text() -> None:
    """A text without a directory gets no proposed URL."""
    for flags, said in ((["--store", ""], r"--store is empty; try file:///var/lib/jetblock or s3://bucket/prefix"),
                        (["-sd", ""], "--store_dir names no directory; try --store_dir /var/lib/jetblock")):
        with pytest.raises(ConfigError, match=said):
            load(read_flags(flags), {})
    with pytest.raises(ValueError, match="the URL of the store is empty: write file://DIR"):
        parse_store_url("")


@pytest.mark.parametrize("command", ["inspect URL", "fsck URL", "copy URL file:///nowhere/x", "cost URL", "adopt URL"])
def test_commands(command: str, tmp_path: Path) -> None:
    """Each command that takes a store proposes the same."""
    done = subprocess.run([sys.executable, "-m", "broker", *command.replace("URL", "s3:/bucket").split()],
                          capture_output=True, text=True, timeout=60, cwd=Path(__file__).parents[2], check=False)
    assert (done.returncode, "try s3://bucket" in done.stderr) == (2, True), done.stderr
