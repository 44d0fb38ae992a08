"""The files that are shipped say what they should: configuration, compose file, image, the page of settings.

Where no Docker engine runs this is as far as they can be checked: that the compose file's command, its variables and
its configuration are ones that the broker takes, and that the order of its services is the one that works.
"""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import yaml

from broker.config.flags import read_flags
from broker.config.load import load, read_text
from broker.config.settings import SETTINGS, Settings
from broker.config.syntax import parse, plain

ROOT = Path(__file__).resolve().parents[2]
CONF = ROOT / "config" / "jetblock.conf"


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "docker-compose.yml").read_text())


def _interpolated(text: str) -> str:
    """``${NAME:-default}`` as the engine reads it with no variable set."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)


def test_shipped_configuration() -> None:
    """It is valid, and does what its comments say."""
    found = load(read_flags(["-c", str(CONF)]), {})
    assert (found.port, found.http_port, found.jetstream) == (4222, 8222, True)
    assert [line.partition(",")[0] for line in found.notices] == ["Temporary storage directory used"]
    assert load(read_flags(["-c", str(CONF), "--store", "file:///srv/jetblock"]), {}).notices == ()


def test_what_is_commented_out_is_the_default() -> None:
    """Each commented line of the engine's block, made real, changes nothing; each names a known key."""
    text = CONF.read_text()
    block = text[text.index("\njetblock {"):]
    for key, value in re.findall(r"^  # (\w+): (\S+)", block, re.MULTILINE):
        found = load(read_flags(["-c", "x"]), {}, lambda _path, key=key, value=value: f"jetblock {{ {key}: {value} }}")
        if key != "commit_interval":  # whose default depends on the store
            assert found == Settings(), key
    shown = set(re.findall(r"^  # (\w+): ", block, re.MULTILINE))
    known = {setting.keys[0].removeprefix("jetblock.") for setting in SETTINGS
             if setting.keys and setting.keys[0].startswith("jetblock.")}
    assert shown == known - {"store"}


def test_every_commented_setting_is_valid() -> None:
    """With every comment that looks like a setting made real, the file is still taken (but for the two stores)."""
    lines = []
    for line in CONF.read_text().splitlines():
        opened = re.sub(r"^(\s*)# ((?:  )?(?:\w+: \S|\w+ \{|\}).*)", r"\1\2", line)
        lines.append(line if "store_dir" in line else opened)
    text = "\n".join(lines)
    top = plain(parse(text, environ={"APP_PASSWORD": "p", "KEY_ID": "k", "SECRET_KEY": "s"}))
    assert {"authorization", "jetstream", "jetblock"} <= top.keys()
    found = load(read_flags(["-c", "x"]), {"APP_PASSWORD": "p", "KEY_ID": "k", "SECRET_KEY": "s"}, lambda _path: text)
    assert (found.user, found.store, found.s3_region) == ("app", "s3://jetblock/streams", "us-east-1")


def test_compose_starts_what_the_broker_takes(compose: dict[str, Any]) -> None:
    """Its flags and variables become settings: S3, no pause between commits, a name of its own."""
    service = compose["services"]["jetblock"]
    environ = {name: _interpolated(value) for name, value in service["environment"].items()}
    found = load(read_flags(service["command"]), environ, lambda _path: read_text(str(CONF)))
    assert (found.store, found.commit_interval_ns, found.server_name) == ("s3://jetblock/streams", 0, "jetblock")
    assert (found.port, found.http_port) == (4222, 8222)
    minio = compose["services"]["minio"]["environment"]
    assert environ["AWS_ACCESS_KEY_ID"] == _interpolated(minio["MINIO_ROOT_USER"])
    assert environ["AWS_SECRET_ACCESS_KEY"] == _interpolated(minio["MINIO_ROOT_PASSWORD"])


def test_compose_waits_in_order(compose: dict[str, Any]) -> None:
    """MinIO healthy, then the bucket made, then the broker; only MinIO keeps anything."""
    services = compose["services"]
    assert services["bucket"]["depends_on"] == {"minio": {"condition": "service_healthy"}}
    assert services["jetblock"]["depends_on"] == {"bucket": {"condition": "service_completed_successfully"}}
    assert [name for name, service in services.items() if service.get("volumes")] == ["minio"]
    assert all("healthcheck" in services[name] for name in ("minio", "jetblock"))
    assert Path(ROOT, compose["configs"]["jetblock"]["file"]) == CONF


def test_image_has_what_the_build_copies() -> None:
    """Every path that the Dockerfile copies is there and not ignored, and it does not run as root."""
    text = (ROOT / "Dockerfile").read_text()
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for sources in re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.MULTILINE):
        for source in sources.split():
            assert source.split("/")[0] in allowed, source
            assert (ROOT / source).exists() or source == "README.md", source
    assert re.search(r"^USER (?!root)", text, re.MULTILINE)
    assert "HEALTHCHECK" in text


def test_settings_page_is_up_to_date() -> None:
    """docs/CONFIGURATION.md is what its generator makes."""
    made = runpy.run_path(str(ROOT / "docs" / "generators" / "configuration.py"))
    assert made["PAGE"].read_text() == made["page"](), "run: python docs/generators/configuration.py"


def test_spark_page_is_up_to_date() -> None:
    """The tables of docs/SPARK.md are what their generator makes."""
    made = runpy.run_path(str(ROOT / "docs" / "generators" / "spark_options.py"))
    assert made["PAGE"].read_text() == made["page"](), "run: python docs/generators/spark_options.py"
