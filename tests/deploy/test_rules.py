"""The rules for Prometheus: each metric and label exists on a real broker, and promtool evaluates them over series."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import nats
import pytest
import yaml
from prometheus_client import parser

from broker.monitor.metrics import FAMILIES
from tests.harness import BrokerProcess, fetch
from tests.real import parts
from tests.real.s3 import MISSING

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "prometheus"
RULES = FOLDER / "jetblock.rules.yml"
OTHERS = {"up", "process_open_fds", "process_max_fds"}
NAME = re.compile(r"\b((?:jetblock|process)_\w+)(?:\{([^}]*)\})?")


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def test_each_metric_and_label_exists() -> None:
    """Rules name metrics of the broker alone, and group by labels that these have; each alert says what it means."""
    labels = {name: {*family.labels, "job", "instance", "le"} for family in FAMILIES
              for name in (family.name, f"{family.name}_bucket", f"{family.name}_count")}
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    for rule in rules():
        names = NAME.findall(rule["expr"])
        assert names or any(name in rule["expr"] for name in recorded), rule
        for name, selectors in names:
            assert name in labels or name in OTHERS, name
            if name in labels:
                assert set(re.findall(r"(\w+)[!=]~?=?\"", selectors)) <= labels[name], rule
        for grouped in re.findall(r"(?:by|on) \(([^)]*)\)", rule["expr"]):
            known = set().union(*(labels.get(name, {"job", "instance"}) for name, _ in names),
                                {"job", "instance", "operation"})
            assert {label.strip() for label in grouped.split(",")} <= known, rule
        for name in re.findall(r"jetblock:[\w:]+", rule["expr"]):
            assert name in recorded
        if "alert" in rule:
            assert rule["labels"]["severity"] in ("critical", "warning", "info")
            assert {"summary", "description"} == set(rule["annotations"])


def test_each_alert_has_series_that_fire_it() -> None:
    """A new alert needs a test in the file beside the rules."""
    text = (FOLDER / "jetblock.rules.test.yml").read_text()
    assert {rule["alert"] for rule in rules() if "alert" in rule} == set(re.findall(r'alertname="(\w+)"', text))


def test_each_alert_is_documented() -> None:
    """The page's table has each alert with its severity."""
    page = (FOLDER.parents[1] / "docs" / "MONITORING.md").read_text()
    for rule in rules():
        if "alert" in rule:
            assert f"| `{rule['alert']}` | {rule['labels']['severity']} |" in page, rule["alert"]


def promtool(*words: str | Path) -> subprocess.CompletedProcess[str]:
    try:
        program = parts.promtool()
    except parts.PartMissing as error:
        pytest.skip(f"{MISSING}promtool: {error}")
    return subprocess.run([program, *words], capture_output=True, text=True, check=False)


@pytest.mark.soak
@pytest.mark.timeout(2000)
def test_the_rules_fire_as_the_file_of_series_says() -> None:
    """promtool accepts the rules, and evaluates them over the series of the test file."""
    done = promtool("check", "rules", RULES)
    assert done.returncode == 0, done.stdout + done.stderr
    done = promtool("test", "rules", FOLDER / "jetblock.rules.test.yml")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.soak
@pytest.mark.timeout(2000)
async def test_real_series_of_healthy_brokers_fire_nothing(tmp_path: Path) -> None:
    """The metrics of an owner with a hostile stream name and of its standby, as scraped, fire no alert. Without the
    standby, only its absence is reported; with both gone, that nobody serves."""
    async with BrokerProcess("-js", "-sd", str(tmp_path / "store")) as owner:
        client = await nats.connect(owner.url)
        js = client.jetstream()
        await js.add_stream(name='S"{}', subjects=["s"])
        for _ in range(20):
            await js.publish("s", b"x")
        standby = BrokerProcess("-js", "-sd", str(tmp_path / "store"))
        try:
            await standby.start(ready=False)
            await standby.wait_line("Starting http monitor")
            scraped = {name: await _series(broker, name) for name, broker in (("a", owner), ("b", standby))}
        finally:
            await standby.close()
        await client.close()
    shutil.copy(RULES, tmp_path)
    up = [{"series": f'up{{job="jetblock", instance="{name}"}}', "values": "1x120"} for name in "ab"]
    gone = [{"series": f'up{{job="jetblock", instance="{name}"}}', "values": "0x120"} for name in "ab"]
    tests = [(up + scraped["a"] + scraped["b"], []), (up + scraped["a"], ["JetblockNoStandby"]),
             (up + scraped["b"], ["JetblockNobodyServes"]), (gone, ["JetblockNobodyServes"])]
    (tmp_path / "test.yml").write_text(yaml.safe_dump({
        "rule_files": [RULES.name], "tests": [{
            "interval": "1m", "input_series": series, "promql_expr_test": [{
                "expr": 'count by (alertname) (ALERTS{alertstate="firing"})', "eval_time": "100m",
                "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in expected]}]}
            for series, expected in tests]}))
    done = promtool("test", "rules", tmp_path / "test.yml")
    assert done.returncode == 0, done.stdout + done.stderr


async def _series(broker: BrokerProcess, instance: str) -> list[dict[str, str]]:
    """Scrape a broker; return its samples as constant series of promtool's notation."""
    status, body = await fetch(f"http://127.0.0.1:{broker.http_port}/metrics")
    assert status == 200
    series = []
    for family in parser.text_string_to_metric_families(body.decode()):
        for sample in family.samples:
            labels = {**sample.labels, "job": "jetblock", "instance": instance}
            escaped = {name: value.replace("\\", "\\\\").replace('"', '\\"') for name, value in labels.items()}
            words = ", ".join(f'{name}="{value}"' for name, value in escaped.items())
            series.append({"series": f"{sample.name}{{{words}}}", "values": f"{sample.value:g}x120"})
    return series
