"""Brokers for the tests of other programs: the thread, and the pytest plugin.

The plugin is loaded here by name, because an older installation lacks its entry point.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import nats
import pytest

from jetblock import ConfigError, StartError
from jetblock.testing import BrokerThread

ROOT = Path(__file__).parents[2]


async def publish(url: str) -> int:
    """Publish one message to the stream S, which is created if it is missing; return its sequence."""
    client = await nats.connect(url)
    js = client.jetstream()
    await js.add_stream(name="S", subjects=["s"])
    answer = await js.publish("s", b"x")
    await client.close()
    return answer.seq


def test_a_restart_keeps_the_port_and_the_streams_of_a_directory(tmp_path: Path) -> None:
    """Nothing listens at the address after the end, and no thread remains."""
    with BrokerThread(tmp_path / "streams") as broker:
        url = broker.url
        assert url == f"nats://127.0.0.1:{broker.port}"
        assert asyncio.run(publish(url)) == 1
        broker.restart()
        assert broker.url == url
        assert asyncio.run(publish(url)) == 2
        broker.stop()
        broker.stop()
        with pytest.raises(RuntimeError, match="not running"):
            _ = broker.url
        broker.start()
        with pytest.raises(RuntimeError, match="is running"):
            broker.start()
        assert asyncio.run(publish(url)) == 3
        thread = broker._thread
    assert not thread.is_alive()


def test_errors_are_raised_in_the_caller() -> None:
    """The constructor raises for a wrong setting, the start for a port in use; a start that failed can be repeated."""
    with pytest.raises(ConfigError, match="did you mean"):
        BrokerThread(settings={"auth.usr": "x"})
    with BrokerThread(None) as broker:
        other = BrokerThread(None, port=broker.port)
        with pytest.raises(StartError, match="address already in use"):
            other.start()
    with other:
        assert other.port == broker.port


async def test_a_test_with_asyncio_uses_it_too() -> None:
    """The broker's thread does not need the caller's loop."""
    with BrokerThread() as broker:
        assert await publish(broker.url) == 1


def test_the_fixture(tmp_path: Path) -> None:
    """A new directory for each test; the marker gives the broker's arguments, also with store=None."""
    (tmp_path / "test_own.py").write_text("""
import pytest

def test_directory(nats_broker, tmp_path):
    assert nats_broker.url.startswith("nats://127.0.0.1:")
    assert (tmp_path / "nats_broker").is_dir()

@pytest.mark.nats_broker(store=None, settings={"auth.user": "u", "auth.password": "p"})
def test_marker(nats_broker, tmp_path):
    assert nats_broker._broker.settings.auth.user == "u"
    assert list(tmp_path.iterdir()) == []

@pytest.mark.nats_broker(nothing=1)
def test_unknown_argument(nats_broker):
    pass
""")
    environ = {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "--strict-markers", "-p", "jetblock.testing.plugin"],
                          cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert "2 passed, 1 error" in done.stdout
    assert "unexpected keyword argument 'nothing'" in done.stdout


def test_nothing_is_imported_without_need() -> None:
    """Each run of pytest imports the plugin, and each driver of Spark the helpers, without the server or Spark."""
    absent = ("broker.runtime.app", "broker.config", "broker.storage.log", "broker.protocol", "pyspark", "nats",
              "numpy")
    code = ("import sys, jetblock, jetblock.testing.plugin, jetblock.spark\n"
            f"print([name for name in {absent!r} if name in sys.modules])")
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60,
                          check=True)
    assert done.stdout.strip() == "[]"


def test_each_public_name_is_there() -> None:
    """Names of the package itself are imported on first use; another name is an AttributeError."""
    import jetblock

    for name in jetblock.__all__:
        assert getattr(jetblock, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Brokr'"):
        _ = jetblock.Brokr  # type: ignore[attr-defined]
