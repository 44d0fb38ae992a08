"""The block ``streaming { … }`` and the flags of nats-streaming-server."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.config.flags import read_flags
from broker.config.load import load
from broker.config.settings import ConfigError, Settings
from broker.config.show import show
from broker.config.streaming import ChannelLimits

pytestmark = pytest.mark.shows("streaming.settings")


def loaded(tmp_path: Path, text: str = "", *flags: str, **environ: str) -> Settings:
    path = tmp_path / "server.conf"
    path.write_text(text or "port: 4222")
    return load(read_flags(["-c", str(path), *flags]), environ)


def refused(tmp_path: Path, text: str, *flags: str) -> str:
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, text, *flags)
    return str(caught.value)


def test_no_setting_enables_it(tmp_path: Path) -> None:
    """Without settings of NATS Streaming, neither the gateway nor JetStream is on."""
    settings = loaded(tmp_path)
    assert not settings.streaming.enabled
    assert not settings.jetstream.enabled


@pytest.mark.parametrize("text", ["streaming {}", "streaming: { id: other }"])
def test_a_block_enables_it(tmp_path: Path, text: str) -> None:
    settings = loaded(tmp_path, text)
    assert settings.streaming.enabled
    assert settings.jetstream.enabled


def test_flags_and_environment_enable_it(tmp_path: Path) -> None:
    assert loaded(tmp_path, "", "-cid", "mine").streaming.cluster_id == "mine"
    assert loaded(tmp_path, "", "-mc", "0").streaming.enabled
    settings = loaded(tmp_path, "", JETBLOCK_STREAMING_CLUSTER_ID="mine")
    assert (settings.streaming.enabled, settings.streaming.cluster_id) == (True, "mine")
    assert not loaded(tmp_path, "streaming {}", JETBLOCK_STREAMING_ENABLED="false").streaming.enabled


def test_disabled_jetstream_contradicts_it(tmp_path: Path) -> None:
    assert "NATS Streaming keeps its channels in JetStream" in refused(tmp_path, "jetstream: disabled\nstreaming {}")


@pytest.mark.parametrize("block", ["store_limits", "limits", "storelimits", "Store_Limits"])
def test_every_alias(tmp_path: Path, block: str) -> None:
    """The aliases of nats-streaming-server set the same settings."""
    settings = loaded(tmp_path, f"""streaming {{
        cid: mine, hbi: "1s", server_to_client_hb_timeout: "2s", hbf: 3,
        {block} {{ mc: 4, maxsubscriptions: 5, max_count: 6, mb: 7KB, ma: "8s",
                   per_channel {{ a: {{ maxage: "9s", mm: 0 }} }} }} }}""").streaming
    assert (settings.cluster_id, settings.hb_interval_ns, settings.hb_timeout_ns, settings.hb_fail_count) == (
        "mine", 1_000_000_000, 2_000_000_000, 3)
    assert (settings.max_channels, settings.max_subs, settings.max_msgs, settings.max_bytes, settings.max_age_ns) == (
        4, 5, 6, 7168, 8_000_000_000)
    assert settings.channels == (("a", ChannelLimits(max_age_ns=9_000_000_000, max_msgs=0)),)


def test_each_limit_comes_from_the_most_specific_pattern(tmp_path: Path) -> None:
    """A limit that a pattern leaves out comes from the next more general one, and then from the general limits."""
    settings = loaded(tmp_path, """streaming { store_limits { max_msgs: 1, max_subs: 2, channels {
        ">": { max_bytes: 10 }
        "a.>": { max_msgs: 20, max_bytes: 30 }
        "a.*": { max_age: "4s" }
        "a.b": { max_msgs: 0 }
    } } }""").streaming
    assert settings.limits_of("x") == ChannelLimits(2, 1, 10, 0, 0)
    assert settings.limits_of("a.b.c") == ChannelLimits(2, 20, 30, 0, 0)
    assert settings.limits_of("a.c") == ChannelLimits(2, 20, 30, 4_000_000_000, 0)
    assert settings.limits_of("a.b") == ChannelLimits(2, 0, 30, 4_000_000_000, 0)


def test_max_inactivity(tmp_path: Path) -> None:
    """Its aliases, its inheritance and its flag are those of the other limits."""
    settings = loaded(tmp_path, """streaming { store_limits { mi: "1h", channels {
        "a.>": { maxinactivity: "1m" }, "a.b": { max_inactivity: "0s" } } } }""").streaming
    limits = [settings.limits_of(name).max_inactivity_ns // 1_000_000_000 for name in ("x", "a.c", "a.b")]
    assert limits == [3600, 60, 0]
    assert loaded(tmp_path, "", "-mi", "2s").streaming.max_inactivity_ns == 2_000_000_000


def test_a_file_of_its_own(tmp_path: Path) -> None:
    """The settings of NATS Streaming come from ``-sc`` alone, if both files have some."""
    own = tmp_path / "stan.conf"
    own.write_text("cid: own, partitioning: true, limits { channels { a: {} } }")
    settings = loaded(tmp_path, "port: 4333, streaming { cid: other, hbf: 3 }", "-sc", str(own))
    assert (settings.clients.port, settings.streaming.cluster_id, settings.streaming.hb_fail_count,
            settings.streaming.partitioning) == (4333, "own", 10, True)
    assert load(read_flags(["-sc", str(own)]), {}).streaming.cluster_id == "own"
    own.write_text("port: 4444, streaming { cid: own }")
    settings = load(read_flags(["--stan_config", str(own)]), {})
    assert (settings.clients.port, settings.streaming.cluster_id) == (4444, "own")
    own.write_text("cid: own, prot: 4")
    assert 'unknown field "prot"' in refused(tmp_path, "", "-sc", str(own))
    assert "name a readable file" in refused(tmp_path, "", "-sc", str(tmp_path / "none"))


def test_flags_without_effect(tmp_path: Path) -> None:
    """The other flags of nats-streaming-server are reported, or refused with the reason."""
    settings = loaded(tmp_path, "", "-st", "FILE", "--store", "file", "-SDV", "--file_sync=false")
    assert [notice.split(" has no effect")[0] for notice in settings.notices][:4] == [
        "--st", "--st", "--SDV", "--file_sync"]
    assert settings.streaming.enabled
    assert "NATS Streaming clients connect to this broker" in refused(tmp_path, "", "-ns", "nats://x")
    assert "stand by for each other" in refused(tmp_path, "", "-clustered")


def test_dir_is_the_store_unless_another_setting_names_one(tmp_path: Path) -> None:
    """The store of nats-streaming-server itself is refused: its channels would seem to be gone."""
    store = tmp_path / "store"
    block = f"streaming {{ store: file, datastore: {store} }}"
    assert loaded(tmp_path, "", "--store", "FILE", "--dir", str(store)).storage.url == f"file://{store}"
    assert loaded(tmp_path, block).storage.url == f"file://{store}"
    assert loaded(tmp_path, block, "--store", "memory://").storage.url == "memory://"
    assert loaded(tmp_path, f"{block}\njetstream {{ store_dir: /x }}").storage.url == "file:///x"
    store.mkdir()
    (store / "server.dat").touch()
    assert f"{store} has the channels of a nats-streaming-server" in refused(tmp_path, block)
    assert loaded(tmp_path, block, "-sd", "/x").storage.url == "file:///x"


def test_what_is_shown_can_be_read(tmp_path: Path) -> None:
    """The text of --print-config is the same configuration."""
    settings = loaded(tmp_path, """streaming { cid: mine, store_limits { max_age: "1h", channels {
        "a.>": { max_msgs: 0, max_age: "1m" }, b: {} } } }""")
    assert loaded(tmp_path, show(settings)).streaming == settings.streaming
    assert "streaming" not in show(loaded(tmp_path))


@pytest.mark.parametrize(("text", "words"), [
    ("streaming { store: file, file_options { sync: true } }", "store has no effect here"),
    ("streaming { sd: true }", "sd has no effect here"),
    ("streaming { cluster { node_id: a } }", "cluster has no effect here"),
    ("streaming { tls { client_cert: x } }", "tls has no effect here")])
def test_keys_without_effect_are_reported(tmp_path: Path, text: str, words: str) -> None:
    assert any(words in notice for notice in loaded(tmp_path, text).notices)


@pytest.mark.parametrize(("text", "words"), [
    ("streaming { encrypt: true }", '"encrypt" is not supported'),
    ("streaming { nats_server_url: \"nats://x:4222\" }", '"nats_server_url" is not supported'),
    ("streaming { partitioning: true }", "stan: no configured channel"),
    ("streaming { store_limits { max_channels: 1, channels { a: {}, b: {}, \"c.*\": {} } } }",
     "too many channels defined (2). The max channels limit is set to 1"),
    ("streaming { cluster_idd: x }", 'unknown field "cluster_idd"; did you mean cluster_id?'),
    ("streaming: 5", "streaming must be a block"),
    ("streaming { store_limits { channels: 5 } }", "channels must be a block"),
    ("streaming { store_limits { channels { a: 5 } } }", "the limits of channel a must be a block"),
    ("streaming { store_limits { channels { \"a..b\": {} } } }", 'invalid channel name "a..b"'),
    ("streaming { store_limits { channels { a: { max_msgs: -1 } } } }", "max_msgs must be at least 0"),
    ("streaming { store_limits { channels { a: { max: 1 } } } }", 'unknown field "max"'),
    ("streaming { hb_interval: soon }", "hb_interval must be a duration")])
def test_invalid_settings_are_refused(tmp_path: Path, text: str, words: str) -> None:
    assert words in refused(tmp_path, text)
