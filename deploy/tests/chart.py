"""Renders the chart and checks objects as an API server would."""

from __future__ import annotations

import copy
import json
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy/helm/trunkline"
MANIFESTS = ROOT / "deploy/manifests"
TOOLS = ROOT / ".tools/bin"
VALUE_FILES = sorted((CHART / "ci").glob("*.yaml"))
# The oldest and the newest version whose schemas are checked; the oldest is that of Chart.yaml.
KUBERNETES_VERSIONS = ("1.30.0", "1.37.0")
# Go module with definitions of custom resources → its version and checksum, and the files.
CUSTOM_RESOURCES = {
    "sigs.k8s.io/gateway-api@v1.6.3": (
        "h1:lKpJa5bGlraC/QeACvCpsHLdmO6y0iKfzVl6gzaFEYc=",
        ["config/crd/standard/gateway.networking.k8s.io_httproutes.yaml"],
    ),
    "sigs.k8s.io/gateway-api-inference-extension@v1.5.0": (
        "h1:w9Awt60cmI1vM7Y6N81h8wDCBP0WkmxpdI7GKY0v070=",
        ["config/crd/bases/inference.networking.k8s.io_inferencepools.yaml"],
    ),
    "github.com/kedacore/keda/v2@v2.21.0": (
        "h1:R6z2HZvstK4RLUMxroNACzBj74xGxt3kG59b5Xc+Xps=",
        ["config/crd/bases/keda.sh_scaledobjects.yaml"],
    ),
    "github.com/prometheus-operator/prometheus-operator@v0.85.0": (
        "h1:M5xLCLEoaW2IJfnuCwFzzpL+jSVQu3KGT84Pye+fW8s=",
        [
            f"example/prometheus-operator-crd/monitoring.coreos.com_{kind}.yaml"
            for kind in ("podmonitors", "prometheusrules")
        ],
    ),
}
Object = dict[str, Any]


def helm(*args: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([TOOLS / "helm", *args], capture_output=True, text=True, check=False)


def template(*args: str | Path, release: str = "trunkline") -> str:
    """Returns what `helm template` prints, and fails with its error."""
    result = helm("template", release, CHART, *args)
    assert result.returncode == 0, result.stderr
    return result.stdout


def render(*args: str | Path, release: str = "trunkline") -> list[Object]:
    return objects(template(*args, release=release))


def objects(text: str) -> list[Object]:
    return [item for item in yaml.safe_load_all(text) if item]


def only(items: list[Object], kind: str) -> Object:
    """Returns the object of a kind that occurs once."""
    found = [item for item in items if item["kind"] == kind]
    assert len(found) == 1, f"{len(found)} objects of kind {kind}"
    return found[0]


def pod(items: list[Object]) -> Object:
    """Returns the template of the pods."""
    workloads = [item for item in items if item["kind"] in ("Deployment", "StatefulSet")]
    assert len(workloads) == 1
    spec: Object = workloads[0]["spec"]["template"]
    return spec


def container(items: list[Object]) -> Object:
    containers = pod(items)["spec"]["containers"]
    assert len(containers) == 1
    first: Object = containers[0]
    return first


@cache
def definitions() -> tuple[Object, ...]:
    """Returns the definitions of all custom resources, as their Go modules contain them."""
    found = []
    for module, (checksum, files) in CUSTOM_RESOURCES.items():
        download = subprocess.run(
            ["go", "mod", "download", "-json", module], capture_output=True, text=True, check=False
        )
        assert download.returncode == 0, f"{module}: {download.stdout}{download.stderr}"
        place = json.loads(download.stdout)
        assert place["Sum"] == checksum, f"{module} is not what it was"
        found += [yaml.safe_load((Path(place["Dir"]) / file).read_text()) for file in files]
    return tuple(found)


def custom_schema(item: Object) -> Object | None:
    """Returns the schema of a custom resource; None if the object is Kubernetes' own."""
    for definition in definitions():
        spec = definition["spec"]
        for version in spec["versions"]:
            if (f"{spec['group']}/{version['name']}", spec["names"]["kind"]) == (item["apiVersion"], item["kind"]):
                schema: Object = copy.deepcopy(version["schema"]["openAPIV3Schema"])
                schema["properties"]["metadata"] = {}
                adapt(schema)
                return schema
    return None


def adapt(schema: Any) -> None:
    """Rewrites what Kubernetes adds to JSON schemas, and refuses unknown fields, which it would drop in silence."""
    if isinstance(schema, list):
        for part in schema:
            adapt(part)
    elif isinstance(schema, dict):
        if "properties" in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
            schema.setdefault("additionalProperties", False)
        if isinstance(schema.get("pattern"), str) and "(?i)" in schema["pattern"]:
            # Python wants flags at the beginning.
            schema["pattern"] = "(?i)" + schema["pattern"].replace("(?i)", "")
        for part in schema.values():
            adapt(part)


def check(items: list[Object], with_custom: bool = True) -> Iterator[str]:
    """Checks objects against the schemas of Kubernetes and of custom resources, and yields their kinds."""
    for item in items:
        schema = custom_schema(item) if with_custom else None
        if schema is not None:
            jsonschema.validate(item, schema)
        else:
            for version in KUBERNETES_VERSIONS:
                kubernetes_validate.validate(item, version, strict=True)
        yield item["kind"]
