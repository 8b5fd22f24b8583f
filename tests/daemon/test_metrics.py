"""/metrics of a real daemon after an acquisition, checked by Prometheus's own tool; and what builds on it:
METRICS.md, alert rules, dashboard."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from tests.harness.daemon import DaemonProcess
from tests.harness.json_process import wait_for
from tests.web.web_process import Answer, ask

import shardwright as sw
from shardwright.daemon import events
from shardwright.simulate.photons import PhotonFrames

from .conftest import write_config

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "configs"
DOCUMENT = ROOT / "src" / "shardwright" / "web" / "METRICS.md"
ALERTS = CONFIGS / "prometheus-alerts.yaml"
ALERTS_TEST = Path(__file__).parents[1] / "web" / "alerts_test.yaml"
DASHBOARD = CONFIGS / "grafana-dashboard.json"
OF_PROMETHEUS = {"up", "ALERTS"}
NAME = re.compile(r"\b(shardwright_[a-z0-9_]+|up)\b")
HTTP = 'http: {enabled: true, listen: "127.0.0.1:*"}\n'
FRAMES = 21
FRAME_BYTES = 48 * 80 * 2


@dataclass(frozen=True)
class Scrape:
    """What a scraper got, and the receipt of what had been recorded by then."""

    text: str
    openmetrics: str
    receipt: sw.Receipt

    @cached_property
    def values(self) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        samples = [sample for family in parse_text(self.text) for sample in family.samples]
        return {(sample.name, frozenset(sample.labels.items())): sample.value for sample in samples}

    def value(self, name: str, **labels: str) -> float:
        return self.values[f"shardwright_{name}", frozenset(labels.items())]

    @cached_property
    def names(self) -> set[str]:
        """As PromQL calls them. A family without a sample (no event of that kind yet) has a name all the
        same."""
        plain = {
            family.name + ("_total" if family.type == "counter" else "") for family in parse_text(self.text)
        }
        return plain | {sample.name for family in parse_text(self.text) for sample in family.samples}


@pytest.fixture(scope="module")
def scrape() -> Iterator[Scrape]:
    with tempfile.TemporaryDirectory(prefix="sw-") as folder:  # whose sockets fit into an address
        yield scraped(write_config(Path(folder), create=True))


def scraped(config: Path) -> Scrape:
    config.write_text(config.read_text() + HTTP)
    source = PhotonFrames((48, 80), seed=3)
    with DaemonProcess(config) as daemon:
        ready = daemon.wait_for("ready")
        page = daemon.wait_for("web_ready")["url"]
        port = int(page.rstrip("/").rpartition(":")[2])
        with (
            sw.connect(ready["endpoints"][0]) as connection,
            connection.acquire("x", stream="cam0") as stream,
        ):
            for i in range(FRAMES):
                stream.append(source.frame(i), frame_id=i + (2 if i > 9 else 0))  # two that never come
            stream.append(source.frame(0), frame_id=3)
        # of two threads: ingest, and the one that looks at the disks
        text = ask_until(port, 'event="acquisition_ended"', "shardwright_disk_free_bytes{")
        other = ask(port, "/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
        assert text.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        assert other.headers["Content-Type"].startswith("application/openmetrics-text")
        assert daemon.stop() == 0
    return Scrape(text.body.decode(), other.body.decode(), stream.receipt)


def ask_until(port: int, *told: str) -> Answer:
    """The first answer that tells of all that: the page's numbers may be as old as STATUS_FRESH_S."""
    answers = []

    def is_told() -> bool:
        answers.append(ask(port, "/metrics"))
        return all(each in answers[-1].body.decode() for each in told)

    wait_for(is_told, " and ".join(told))
    return answers[-1]


def promtool(*arguments: str | Path, given: str = "", folder: Path | None = None) -> str:
    program = shutil.which("promtool")
    assert program is not None, (
        "promtool is missing. On Debian or Ubuntu, as root: apt-get install prometheus"
    )
    done = subprocess.run(
        [program, *map(str, arguments)], input=given, capture_output=True, text=True, cwd=folder
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_the_numbers_are_those_of_the_receipt(scrape: Scrape) -> None:
    receipt = scrape.receipt
    assert (receipt.frames_received, receipt.frames_missing, receipt.frames_duplicate) == (FRAMES + 1, 2, 1)
    for status in ("received", "stored", "durable", "duplicate", "late", "lost"):
        frames = getattr(receipt, f"frames_{status}")
        assert scrape.value(f"frames_{status}_total", stream="cam0") == frames, status
        assert scrape.value(f"{status}_bytes_total", stream="cam0") == frames * FRAME_BYTES, status
        assert scrape.value(f"frames_{status}_total", stream="client") == 0
    assert scrape.value("frames_missing", stream="cam0") == 2
    assert scrape.value("missing_bytes", stream="cam0") == 2 * FRAME_BYTES
    assert scrape.value("frames_dropped_total", stream="cam0", reason="overload") == 0
    assert scrape.value("written_bytes_total", stream="cam0") == receipt.bytes_stored
    assert scrape.value("compression_ratio", stream="cam0") == pytest.approx(receipt.ratio)
    assert scrape.value("shards_sealed_total", stream="cam0") == receipt.shards
    assert scrape.value("acquisitions_total", stream="cam0") == 1
    assert scrape.value("acquisitions_running", stream="cam0") == 0


def test_gauges_and_events(scrape: Scrape) -> None:
    assert scrape.value("state", state="serving") == 1
    assert scrape.value("memory_budget_bytes") == 2 * 2**30
    assert scrape.value("events_total", event="acquisition_ended") == 1
    (disk,) = [
        (labels, value)
        for (name, labels), value in scrape.values.items()
        if name == "shardwright_disk_free_bytes"
    ]
    assert dict(disk[0])["role"] == "root"
    assert disk[1] > 0
    assert scrape.value("process_open_fds") > 10
    assert scrape.value("process_resident_memory_bytes") > 50e6, "the daemon's, not those of the web process"


def test_histograms_add_up(scrape: Scrape) -> None:
    families = {family.name: family for family in parse_text(scrape.text) if family.type == "histogram"}
    assert len(families) == 6
    for name, family in families.items():
        buckets = [
            (float(s.labels["le"]), s.value)
            for s in family.samples
            if s.name == f"{name}_bucket" and s.labels["stream"] == "cam0"
        ]
        assert buckets == sorted(buckets), name
        assert buckets[0][0] == pytest.approx(1e-4)
        assert buckets[-1] == (
            float("inf"),
            scrape.value(f"{name.removeprefix('shardwright_')}_count", stream="cam0"),
        )


def test_prometheus_takes_it(scrape: Scrape) -> None:
    assert promtool("check", "metrics", given=scrape.text) == ""
    assert len(list(parse_openmetrics(scrape.openmetrics))) == len(list(parse_text(scrape.text)))


def test_labels_are_bounded(scrape: Scrape) -> None:
    """By what stands in the configuration and in the code, never by what is recorded."""
    labels: dict[str, set[str]] = {}
    for _, pairs in scrape.values:
        for label, value in pairs:
            labels.setdefault(label, set()).add(value)
    assert set(labels) == {"version", "state", "role", "path", "stream", "reason", "level", "le", "event"}
    assert labels["stream"] == {"cam0", "client"}
    assert labels["reason"] == {"overload"}
    assert labels["level"] == {"faster", "uncompressed"}


def test_the_document_lists_every_metric_and_no_other(scrape: Scrape) -> None:
    rows = re.findall(
        r"^\| `(\w+)` \| (\w+) \| ([\w, ]*) \| (.*) \|$", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE
    )
    told = {}
    for family in parse_text(scrape.text):
        labels = sorted({label for sample in family.samples for label in sample.labels if label != "le"})
        told[family.name + ("_total" if family.type == "counter" else "")] = (
            family.type,
            ", ".join(labels),
            family.documentation,
        )
    assert {name: (kind, labels.strip(), text) for name, kind, labels, text in rows} == told


def expressions_of_alerts() -> list[str]:
    return [
        rule["expr"]
        for group in yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
        for rule in group["rules"]
    ]


def dashboard() -> dict[str, Any]:
    board: dict[str, Any] = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    return board


def expressions_of_the_dashboard() -> list[str]:
    return [target["expr"] for panel in dashboard()["panels"] for target in panel.get("targets", [])]


def test_rules_and_dashboard_ask_for_metrics_that_exist(scrape: Scrape) -> None:
    queries = [
        variable["definition"]
        for variable in dashboard()["templating"]["list"]
        if variable["type"] == "query"
    ]
    for expression in (*expressions_of_alerts(), *expressions_of_the_dashboard(), *queries):
        asked = set(NAME.findall(expression))
        assert asked, expression
        assert asked <= scrape.names | OF_PROMETHEUS, expression


def test_the_dashboard_shows_every_metric_that_moves(scrape: Scrape) -> None:
    shown = {name for expression in expressions_of_the_dashboard() for name in NAME.findall(expression)}
    rest = {
        family.name
        + ("_total" if family.type == "counter" else "_bucket" if family.type == "histogram" else "")
        for family in parse_text(scrape.text)
    }
    hidden = {
        "build_info",
        "state",
        "uptime_seconds",
        "compaction_enabled",
        "process_virtual_memory_bytes",
        "process_start_time_seconds",
    }
    assert rest - shown == {f"shardwright_{name}" for name in hidden}


def test_the_expressions_of_the_dashboard_are_promql(tmp_path: Path) -> None:
    filled = [
        e.replace("$__rate_interval", "1m")
        .replace("$__range", "30m")
        .replace("$instance", ".*")
        .replace("$stream", ".*")
        for e in expressions_of_the_dashboard()
    ]
    assert not [expression for expression in filled if "$" in expression]
    rules = [{"record": f"panel:{i}", "expr": expression} for i, expression in enumerate(filled)]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    assert f"{len(rules)} rules found" in promtool("check", "rules", tmp_path / "rules.yaml")


def test_the_panels_of_the_dashboard_lie_side_by_side() -> None:
    taken = set()
    for panel in dashboard()["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert max(x for x, _ in cells) < 24
        assert not cells & taken, panel["title"]
        taken |= cells
        assert panel["type"] == "row" or panel["description"], panel["title"]
    ids = [panel["id"] for panel in dashboard()["panels"]]
    assert len(set(ids)) == len(ids)


def test_the_alert_rules_are_valid_and_do_what_they_say() -> None:
    rules = [
        rule["alert"]
        for group in yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
        for rule in group["rules"]
    ]
    assert f"{len(rules)} rules found" in promtool("check", "rules", ALERTS)
    assert "SUCCESS" in promtool("test", "rules", ALERTS_TEST.name, folder=ALERTS_TEST.parent)
    tried = ALERTS_TEST.read_text(encoding="utf-8")
    assert [rule for rule in rules if rule not in tried] == []


def test_the_alert_on_errors_knows_them_as_the_log_does() -> None:
    (expression,) = [
        expression for expression in expressions_of_alerts() if "shardwright_events_total" in expression
    ]
    patterns = set(re.findall(r'event=~"([^"]+)"', expression))
    (pattern,) = patterns
    for ending in events._LEVEL_BY_SUFFIX:
        assert (re.fullmatch(pattern, f"something{ending}") is not None) == (
            events.level_of(f"something{ending}") == "error"
        ), ending
