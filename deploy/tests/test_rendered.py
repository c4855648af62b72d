"""The rendered chart fits the schemas, and its objects agree with each other. Needs helm, promtool and Go."""

from __future__ import annotations

import base64
import subprocess
import tomllib
from pathlib import Path

import chart
import manifests
import pytest
from chart import container, only, pod, render

pytestmark = pytest.mark.full
# Values → the line that says what is wrong with them.
MISTAKES = {
    "backend=gpu": "at '/backend': value must be one of 'cpu', 'cuda'",
    "replcas=2": "additional properties 'replcas' not allowed",
    "config.port=80": "`config.port` would contradict the pod; hint: set `ports.http` instead",
    "config.kv-disk-path=/x": "hint: set `diskTier.enabled` instead",
    "diskTier.size=100": "at '/diskTier/size': got number, want string",
    "ports.metrics=3000": "`ports.http` and `ports.metrics` are both 3000; hint: choose two ports",
    "modelVolume.size=5Gi,replicas=2": "hint: use `accessMode: ReadWriteMany`",
    "auth.keys=x,auth.existingSecret=y": "`auth.keys` and `auth.existingSecret` are both set; hint: remove one",
    "autoscaling.minReplicas=9": "`autoscaling.minReplicas` is 9, above `maxReplicas`, 4",
    "autoscaling.type=keda": "`autoscaling.prometheusUrl` is empty",
    "ingress.enabled=true": "`ingress.hosts` is empty; hint: name a host",
    "httpRoute.enabled=true": "`httpRoute.parentRefs` is empty; hint: name a gateway",
    "inferencePool.enabled=true": "`inferencePool.endpointPicker.name` is empty",
    "inferencePool.enabled=true,inferencePool.endpointPicker.name=p,tls.existingSecret=t": "knows no TLS to pods",
}


def test_lint() -> None:
    for values in [[], *(["-f", file] for file in chart.VALUE_FILES)]:
        result = chart.helm("lint", "--strict", chart.CHART, *values)
        assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("values", [None, *chart.VALUE_FILES], ids=lambda file: file.stem if file else "none")
def test_objects_fit_their_schemas(values: Path | None) -> None:
    items = render(*(["-f", values] if values else []))
    assert len(list(chart.check(items))) == len(items)
    names = [(item["kind"], item["metadata"]["name"]) for item in items]
    assert len(names) == len(set(names))


def test_the_examples_render_every_kind() -> None:
    kinds = {item["kind"] for file in chart.VALUE_FILES for item in render("-f", file)}
    kinds |= {item["kind"] for item in render("--set", "autoscaling.type=hpa")}
    templates = "".join(file.read_text() for file in (chart.CHART / "templates").glob("*.yaml"))
    written = {line.split()[1] for line in templates.splitlines() if line.startswith("kind: ")} - {"{{"}
    assert kinds == written | {"Deployment", "StatefulSet"}


@pytest.mark.parametrize("values", MISTAKES)
def test_a_mistake_is_named(values: str) -> None:
    result = chart.helm("template", chart.CHART, "--set", values)
    assert result.returncode != 0
    assert MISTAKES[values] in result.stderr


def test_manifests_are_those_of_the_chart() -> None:
    for name, values in manifests.MANIFESTS.items():
        assert (chart.MANIFESTS / f"{name}.yaml").read_text() == manifests.render(values), "run `make manifests`"


def test_probes_ask_the_port_without_keys() -> None:
    items = render("-f", chart.CHART / "ci/secured.yaml", "--set", "ports.metrics=9100,probes.startupSeconds=601")
    server = container(items)
    assert {port["name"]: port["containerPort"] for port in server["ports"]} == {"http": 3000, "metrics": 9100}
    assert {"--port=3000", "--metrics-port=9100", "--metrics-hostname=0.0.0.0"} <= set(server["args"])
    routes = {"startupProbe": "/readyz", "readinessProbe": "/readyz", "livenessProbe": "/livez"}
    for probe, path in routes.items():
        assert server[probe]["httpGet"] == {"path": path, "port": "metrics"}
    startup = server["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 601


@pytest.mark.parametrize("timeout", [0, 90, 3600])
def test_kubernetes_waits_for_the_drain(timeout: int) -> None:
    items = render("--set", f"gracefulTerminationTimeout={timeout},preStopSeconds=7")
    assert f"--graceful-termination-timeout={timeout}" in container(items)["args"]
    assert container(items)["lifecycle"]["preStop"]["sleep"]["seconds"] == 7
    assert pod(items)["spec"]["terminationGracePeriodSeconds"] == 7 + timeout + 10


def test_a_changed_setting_restarts_the_pods() -> None:
    def checksums(*values: str) -> dict[str, str]:
        annotations = pod(render(*values))["metadata"]["annotations"]
        return {key: value for key, value in annotations.items() if key.startswith("checksum/")}

    before = checksums()
    assert checksums("--set", "service.port=80") == before
    assert checksums("--set", "config.threads=2")["checksum/config"] != before["checksum/config"]
    assert checksums("--set", "auth.keys=a")["checksum/secret"] != checksums("--set", "auth.keys=b")["checksum/secret"]


def test_settings_keep_their_types() -> None:
    text = (
        """config={"max-body-bytes": 67108864, "watermark-gamma": 0.25, "json-output": true, "log-level": "a\\"<b>"}"""
    )
    file = only(render("--set-json", text, "--set", "diskTier.enabled=true"), "ConfigMap")["data"]["trunkline.toml"]
    assert tomllib.loads(file) == {
        "max-body-bytes": 67108864,
        "watermark-gamma": 0.25,
        "json-output": True,
        "log-level": 'a"<b>',
        "kv-disk-size": "87040MiB",
    }


def test_a_size_of_the_disk_cache_may_be_given() -> None:
    items = render("--set", "diskTier.enabled=true,diskTier.size=2Ti,config.kv-disk-size=1TiB")
    assert tomllib.loads(only(items, "ConfigMap")["data"]["trunkline.toml"]) == {"kv-disk-size": "1TiB"}
    items = render("--set", "diskTier.enabled=true,diskTier.size=2Ti")
    assert tomllib.loads(only(items, "ConfigMap")["data"]["trunkline.toml"]) == {"kv-disk-size": "1782579MiB"}


def test_secrets_are_only_in_the_secret() -> None:
    text = chart.template("-f", chart.CHART / "ci/secured.yaml")
    items = chart.objects(text)
    data = only(items, "Secret")["data"]
    secrets = [base64.b64decode(value).decode() for value in data.values()]
    assert any("sk-an-example" in secret for secret in secrets)
    assert "hf_example" in secrets
    assert "sk-an-example" not in text
    assert "hf_example" not in text
    assert all(text.count(value) == 1 for value in data.values())
    volume = next(volume for volume in pod(items)["spec"]["volumes"] if volume["name"] == "auth")
    assert volume["secret"]["defaultMode"] == 0o440
    assert volume["secret"]["secretName"] == only(items, "Secret")["metadata"]["name"]


def test_existing_secrets_make_no_secret() -> None:
    items = render("--set", "auth.existingSecret=keys,hub.existingSecret=hub")
    assert "Secret" not in {item["kind"] for item in items}
    token = next(variable for variable in container(items)["env"] if variable["name"] == "HF_TOKEN")
    assert token["valueFrom"]["secretKeyRef"] == {"name": "hub", "key": "hub-token"}


def test_selectors_are_stable_and_agree() -> None:
    wanted = {"app.kubernetes.io/name": "trunkline", "app.kubernetes.io/instance": "trunkline"}
    for values in chart.VALUE_FILES:
        items = render("-f", values, "--set", "image.tag=next,podLabels.team=x")
        assert wanted.items() <= pod(items)["metadata"]["labels"].items()
        for item in items:
            spec = item.get("spec", {})
            if item["kind"] == "Service":
                assert spec["selector"] == wanted
            elif item["kind"] != "ScaledObject" and ("selector" in spec or "podSelector" in spec):
                assert spec.get("selector", spec.get("podSelector"))["matchLabels"] == wanted, item["kind"]
        for constraint in pod(items)["spec"]["topologySpreadConstraints"]:
            assert constraint["labelSelector"]["matchLabels"] == wanted


@pytest.mark.parametrize("values", chart.VALUE_FILES, ids=lambda file: file.stem)
def test_pods_are_restricted(values: Path) -> None:
    items = render("-f", values)
    spec, server = pod(items)["spec"], container(items)
    assert spec["enableServiceLinks"] is False
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert server["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    mounted = {mount["name"] for mount in server["volumeMounts"]}
    paths = [Path(mount["mountPath"]) for mount in server["volumeMounts"]]
    # A runtime cannot make the mount point of a volume inside a read-only one.
    assert not [(a, b) for a in paths for b in paths if a in b.parents]
    files = [Path(arg.partition("=")[2]) for arg in server["args"] if arg.partition("=")[2].startswith("/")]
    assert files
    assert all(file.parent in paths for file in files)
    claimed = [item for item in items if item["kind"] == "StatefulSet"]
    templates = {claim["metadata"]["name"] for item in claimed for claim in item["spec"]["volumeClaimTemplates"]}
    assert mounted == {volume["name"] for volume in spec["volumes"]} | templates


def test_backends_differ() -> None:
    cuda = render("--set", "backend=cuda")
    assert container(cuda)["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert container(cuda)["image"] == "trunkline:0.2.0-cuda"
    assert pod(cuda)["spec"]["nodeSelector"] == {"nvidia.com/gpu.present": "true"}
    cpu = render()
    assert "nvidia.com/gpu" not in container(cpu)["resources"]["limits"]
    assert container(cpu)["image"] == "trunkline:0.2.0"
    assert "nodeSelector" not in pod(cpu)["spec"]


def test_model_volumes() -> None:
    def volume(*values: str) -> object:
        items = render(*values)
        return next((v for v in pod(items)["spec"]["volumes"] if v["name"] == "models"), None)

    assert volume() == {"name": "models", "emptyDir": {}}
    shared = {"name": "models", "persistentVolumeClaim": {"claimName": "trunkline-models"}}
    assert volume("--set", "modelVolume.size=1Gi") == shared
    assert only(render("--set", "modelVolume.size=1Gi"), "Deployment")["spec"]["strategy"] == {"type": "Recreate"}
    disk = ["--set", "diskTier.enabled=true,modelVolume.size=1Gi"]
    assert volume(*disk) is None
    assert "PersistentVolumeClaim" not in {item["kind"] for item in render(*disk)}
    assert volume(*disk, "--set", "modelVolume.accessMode=ReadWriteMany") == shared
    assert volume("--set", "modelVolume.existingClaim=mine") == {
        "name": "models",
        "persistentVolumeClaim": {"claimName": "mine"},
    }


def test_the_autoscaler_owns_the_number_of_pods() -> None:
    for kind in ("hpa", "keda"):
        items = render("--set", f"autoscaling.type={kind},autoscaling.prometheusUrl=http://p,diskTier.enabled=true")
        workload = only(items, "StatefulSet")
        assert "replicas" not in workload["spec"]
        scaler = only(items, {"hpa": "HorizontalPodAutoscaler", "keda": "ScaledObject"}[kind])
        target = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": workload["metadata"]["name"]}
        assert scaler["spec"]["scaleTargetRef"] == target


def test_the_route_leads_to_the_pool_if_there_is_one() -> None:
    pooled = render("-f", chart.CHART / "ci/gateway.yaml")
    backend = only(pooled, "HTTPRoute")["spec"]["rules"][0]["backendRefs"][0]
    pool = only(pooled, "InferencePool")
    assert (backend["kind"], backend["name"]) == ("InferencePool", pool["metadata"]["name"])
    assert pool["spec"]["targetPorts"] == [{"number": 3000}]
    assert pod(pooled)["metadata"]["labels"]["llm-d.ai/engine-type"] == "vllm"
    plain = render("-f", chart.CHART / "ci/autoscaled.yaml")
    service = only(plain, "Service")
    backend = only(plain, "HTTPRoute")["spec"]["rules"][0]["backendRefs"][0]
    assert backend == {"name": service["metadata"]["name"], "port": service["spec"]["ports"][0]["port"]}


def test_the_policy_closes_the_metrics() -> None:
    def ports(*values: str) -> list[object]:
        policy = only(render("--set", "networkPolicy.enabled=true", *values), "NetworkPolicy")
        return [port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]]

    assert ports() == ["http"]
    assert ports("--set", "networkPolicy.scrapers[0].podSelector.matchLabels.a=b") == ["http", "metrics"]


def test_alerts() -> None:
    rules = chart.CHART / "monitoring/alerts.yaml"
    tests = chart.ROOT / "deploy/monitoring/alerts.test.yaml"
    for command in (["check", "rules", rules], ["test", "rules", tests]):
        result = subprocess.run([chart.TOOLS / "promtool", *command], capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stdout + result.stderr
