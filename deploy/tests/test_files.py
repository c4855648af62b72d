"""The files of the chart agree with each other, with the documentation and with Kubernetes' schemas. Needs no Go."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import chart
import jsonschema
import pytest
import yaml
from values import descriptions

VALUES = (chart.CHART / "values.yaml").read_text()
SCHEMA = json.loads((chart.CHART / "values.schema.json").read_text())
ALERTS = yaml.safe_load((chart.CHART / "monitoring/alerts.yaml").read_text())
RULES = [rule for group in ALERTS["groups"] for rule in group["rules"]]
METRIC = re.compile(r"\b(trunkline_\w+|vllm:\w+)")


def described(schema: dict[str, Any], path: tuple[str, ...] = ()) -> dict[tuple[str, ...], str]:
    """Returns the description of each value in the schema, by its path."""
    found = {}
    for key, part in schema.get("properties", {}).items():
        found |= {(*path, key): part.get("description", ""), **described(part, (*path, key))}
    return found


def metrics_of_the_docs() -> set[str]:
    rows = re.findall(r"^\| `([\w:]+)` \| (\w+) \|", (chart.ROOT / "docs/metrics.md").read_text(), re.MULTILINE)
    parts = {"histogram": ("_bucket", "_count", "_sum")}
    return {name + part for name, kind in rows for part in parts.get(kind, ("",))}


def test_the_schema_describes_each_value_as_the_comment_above_it() -> None:
    in_schema = described(SCHEMA)
    assert in_schema.pop(("global",))
    comments = {path: text for path, text in descriptions(VALUES).items() if path in in_schema}
    assert in_schema == comments
    leaves = {path for path in in_schema if not any(other[:-1] == path for other in in_schema)}
    assert not [path for path in leaves if not in_schema[path]]


def test_the_schema_names_the_values_that_exist() -> None:
    def names(value: Any, schema: dict[str, Any]) -> None:
        if "properties" in schema:
            assert value.keys() == schema["properties"].keys() - {"global"}
            assert schema["additionalProperties"] is False
            for key, part in value.items():
                names(part, schema["properties"][key])

    jsonschema.Draft7Validator.check_schema(SCHEMA)
    names(yaml.safe_load(VALUES), SCHEMA)
    jsonschema.validate(yaml.safe_load(VALUES), SCHEMA)


@pytest.mark.parametrize("file", chart.VALUE_FILES, ids=lambda file: file.stem)
def test_example_values_are_valid(file: Path) -> None:
    jsonschema.validate(yaml.safe_load(file.read_text()), SCHEMA)


def test_settings_in_examples_and_templates_exist() -> None:
    flags = set(re.findall(r"^\| `--([a-z0-9-]+)`", (chart.ROOT / "docs/operations.md").read_text(), re.MULTILINE))
    templates = "".join(file.read_text() for file in (chart.CHART / "templates").glob("_*.tpl"))
    owned = re.search(r'define "trunkline.ownedSettings" -}}\n(.*?){{- end', templates, re.DOTALL)
    assert owned
    used = {key for file in chart.VALUE_FILES for key in yaml.safe_load(file.read_text()).get("config", {})}
    assert used | set(yaml.safe_load(owned[1])) | set(re.findall(r"- --([a-z-]+)=", templates)) <= flags


def test_versions_are_those_of_the_server() -> None:
    version = re.search(r'^version = "(.+)"', (chart.ROOT / "Cargo.toml").read_text(), re.MULTILINE)
    assert version
    assert yaml.safe_load((chart.CHART / "Chart.yaml").read_text())["appVersion"] == version[1]


@pytest.mark.parametrize("file", sorted(chart.MANIFESTS.glob("*.yaml")), ids=lambda file: file.stem)
def test_manifests_fit_the_schemas_of_kubernetes(file: Path) -> None:
    assert {"Service", "ConfigMap"} <= set(chart.check(chart.objects(file.read_text()), with_custom=False))


def test_the_dashboard_is_that_of_its_source() -> None:
    source = chart.ROOT / "deploy/monitoring/dashboard.py"
    spec = importlib.util.spec_from_file_location("dashboard", source)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    hint = "run `python deploy/monitoring/dashboard.py`"
    assert module.OUTPUT.read_text() == module.text(), hint


@pytest.mark.parametrize("name", ["alerts.yaml", "dashboard.json"])
def test_monitored_metrics_are_documented(name: str) -> None:
    used = set(METRIC.findall((chart.CHART / "monitoring" / name).read_text()))
    assert used
    assert not used - metrics_of_the_docs()


def test_scaling_metrics_are_documented() -> None:
    used = set(METRIC.findall((chart.CHART / "templates/availability.yaml").read_text()))
    assert used == {"trunkline_queued_sequences", "trunkline_running_sequences"}
    assert used <= metrics_of_the_docs()


def test_each_alert_has_a_section_and_a_test() -> None:
    alerts = [rule for rule in RULES if "alert" in rule]
    page = (chart.ROOT / "docs/alerts.md").read_text()
    headings = re.findall(r"^## (Trunkline\w+)$", page, re.MULTILINE)
    assert sorted(rule["alert"] for rule in alerts) == sorted(headings)
    tests = (chart.ROOT / "deploy/monitoring/alerts.test.yaml").read_text()
    for rule in alerts:
        assert rule["annotations"]["runbook_url"].endswith(f"/docs/alerts.md#{rule['alert'].lower()}")
        section = page.split(f"## {rule['alert']}\n")[1].split("\n## ")[0]
        assert all(f"**{part}**" in section for part in ("Symptom", "Cause", "Remedy")), rule["alert"]
        assert f'"{rule["alert"]}"' in tests, rule["alert"]
