"""A real API server accepts what the chart renders. It needs no kubelet: nothing runs, but every object is admitted."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import chart
import httpx
import pytest
import yaml

pytestmark = pytest.mark.full
TOKEN = "test-token"
START_SECONDS = 120
# Pods in such a namespace are refused unless they are as restricted as Kubernetes' strictest profile demands.
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted", "pod-security.kubernetes.io/warn": "restricted"}


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


class Cluster:
    """An API server over etcd."""

    def __init__(self, url: str) -> None:
        self.client = httpx.Client(base_url=url, verify=False, headers={"authorization": f"Bearer {TOKEN}"}, timeout=30)
        self._names: dict[str, dict[str, tuple[str, bool]]] = {}

    def wait(self, path: str, server: subprocess.Popen[bytes], log: Path) -> None:
        """Asks for `path` until the server has it."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            assert server.poll() is None, log.read_text()[-2000:]
            assert time.monotonic() < deadline, f"no {path}: {log.read_text()[-2000:]}"
            try:
                if self.client.get(path).is_success:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.1)

    def path(self, item: chart.Object, namespace: str) -> str:
        """Returns the path of an object, by the server's own list of resources."""
        version = item["apiVersion"]
        group = f"/apis/{version}" if "/" in version else f"/api/{version}"
        if version not in self._names:
            resources = self.client.get(group).raise_for_status().json()["resources"]
            self._names[version] = {r["kind"]: (r["name"], r["namespaced"]) for r in resources if "/" not in r["name"]}
        name, is_namespaced = self._names[version][item["kind"]]
        place = f"/namespaces/{namespace}" if is_namespaced else ""
        return f"{group}{place}/{name}/{item['metadata']['name']}"

    def apply(self, item: chart.Object, namespace: str = "") -> None:
        """Applies an object and fails if the server refuses it, warns of it or does not know a field."""
        answer = self.client.patch(
            self.path(item, namespace),
            params={"fieldManager": "test", "fieldValidation": "Strict", "force": "true"},
            headers={"content-type": "application/apply-patch+yaml"},
            content=yaml.safe_dump(item),
        )
        assert answer.is_success, answer.text
        assert "warning" not in answer.headers, answer.headers["warning"]

    def make_namespace(self, name: str) -> str:
        self.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": RESTRICTED}})
        return name


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    key = folder / "service-account.key"
    subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
    (folder / "tokens.csv").write_text(f'{TOKEN},admin,admin,"system:masters"\n')
    client, peer, port = free_port(), free_port(), free_port()
    etcd_url, peer_url = f"http://127.0.0.1:{client}", f"http://127.0.0.1:{peer}"
    etcd = [
        *("--data-dir", folder / "etcd", "--listen-client-urls", etcd_url, "--advertise-client-urls", etcd_url),
        *("--listen-peer-urls", peer_url, "--initial-advertise-peer-urls", peer_url),
        *("--initial-cluster", f"default={peer_url}", "--unsafe-no-fsync"),
    ]
    server = [
        *("--etcd-servers", etcd_url, "--bind-address", "127.0.0.1", "--advertise-address", "127.0.0.1"),
        *("--secure-port", str(port), "--cert-dir", folder / "certificates"),
        *("--token-auth-file", folder / "tokens.csv", "--endpoint-reconciler-type", "none"),
        *("--authorization-mode", "RBAC", "--service-cluster-ip-range", "10.0.0.0/24"),
        *("--service-account-issuer", "https://test", "--service-account-key-file", key),
        *("--service-account-signing-key-file", key, "--disable-admission-plugins", "ServiceAccount"),
    ]
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for program, args in (("etcd", etcd), ("kube-apiserver", server)):
            with (folder / f"{program}.log").open("wb") as log:
                processes.append(subprocess.Popen([chart.TOOLS / program, *args], stdout=log, stderr=log))
        cluster = Cluster(f"https://127.0.0.1:{port}")

        def wait(path: str) -> None:
            cluster.wait(path, processes[-1], folder / "kube-apiserver.log")

        wait("/readyz")
        for definition in chart.definitions():
            cluster.apply(definition)
            spec = definition["spec"]
            version = next(version["name"] for version in spec["versions"] if version["served"])
            wait(f"/apis/{spec['group']}/{version}/{spec['names']['plural']}")
        yield cluster
        cluster.client.close()
    finally:
        # Nothing is kept, so nothing has to end in order.
        for process in processes:
            process.kill()
            process.wait()


@pytest.mark.parametrize("file", chart.VALUE_FILES, ids=lambda file: file.stem)
def test_examples_are_accepted(cluster: Cluster, file: Path) -> None:
    namespace = cluster.make_namespace(f"example-{file.stem}")
    items = chart.render("-f", file)
    for item in items:
        cluster.apply(item, namespace)
    template = chart.pod(items)
    # A StatefulSet's controller would add the volumes of the claims.
    mounts = template["spec"]["containers"][0]["volumeMounts"]
    missing = {mount["name"] for mount in mounts} - {volume["name"] for volume in template["spec"]["volumes"]}
    template["spec"]["volumes"] += [{"name": name, "emptyDir": {}} for name in sorted(missing)]
    template["metadata"]["name"] = "pod"
    cluster.apply({"apiVersion": "v1", "kind": "Pod", **template}, namespace)


@pytest.mark.parametrize("file", sorted(chart.MANIFESTS.glob("*.yaml")), ids=lambda file: file.stem)
def test_manifests_are_accepted(cluster: Cluster, file: Path) -> None:
    namespace = cluster.make_namespace(f"manifest-{file.stem}")
    for item in chart.objects(file.read_text()):
        cluster.apply(item, namespace)


@pytest.mark.parametrize("disk", ["true", "false"])
def test_an_upgrade_is_accepted(cluster: Cluster, disk: str) -> None:
    namespace = cluster.make_namespace(f"upgrade-{disk}")
    for values in (
        "replicas=1",
        "autoscaling.type=hpa,image.tag=next,config.threads=2,podLabels.team=x,auth.keys=k,model=m",
    ):
        for item in chart.render("--set", f"diskTier.enabled={disk},{values}"):
            cluster.apply(item, namespace)


def test_the_server_refuses_what_is_wrong(cluster: Cluster) -> None:
    """Shows that the tests above can fail: an open pod, an unknown field, and a rule of a custom resource."""
    namespace = cluster.make_namespace("refused")
    items = chart.render("--set", "securityContext=null")
    template = chart.pod(items)
    template["metadata"]["name"] = "pod"
    with pytest.raises(AssertionError, match="violates PodSecurity"):
        cluster.apply({"apiVersion": "v1", "kind": "Pod", **template}, namespace)
    service = chart.only(items, "Service")
    service["spec"]["prots"] = []
    with pytest.raises(AssertionError, match="prots"):
        cluster.apply(service, namespace)
    pool = chart.only(chart.render("-f", chart.CHART / "ci/gateway.yaml"), "InferencePool")
    del pool["spec"]["endpointPickerRef"]["port"]
    with pytest.raises(AssertionError, match="port is required"):
        cluster.apply(pool, namespace)
