"""deploy/kubernetes, rendered by Debian 13's kubectl and held against Kubernetes' schemas, and docs/install-kubernetes.md."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import operations_manual
import pytest
import yaml
from debian_roots import default_cache, unpacked
from kubernetes_api import kubernetes

from timesyncd.config import Config, parse
from timesyncd.driver import options_of
from timesyncd.kubernetes.nodes import KEY, SELECTOR

PROJECT = Path(__file__).parents[2]
MANIFESTS = PROJECT / "deploy/kubernetes"
PAGE = (PROJECT / "docs/install-kubernetes.md").read_text()

#: The newest version whose schemas the validator has, and the oldest that has all that is used here.
VERSIONS = ("1.28", "1.32")

Body = dict[str, Any]

#: Blocks that a test runs or uses, by their beginning, and those that ask the API of a cluster.
USED = (
    "install -D -m 644 deploy/kubernetes/timesyncd.tmpfiles",
    "apiVersion: kustomize",
    "kubectl kustomize deploy/kubernetes/site",
    "apiVersion: v1\nkind: Service\n",
    "  - patch: |\n      apiVersion: monitoring",
    "affinity:",
)
ON_AN_API = (
    "kubectl label node node-a timesyncd.io/node=true",
    "kubectl label node node-a timesyncd.io/bound-ns-",
)


def block(begin: str) -> operations_manual.Block:
    [found] = [each for each in operations_manual.parse(PAGE) if each.text.startswith(begin)]
    return found


@pytest.fixture(scope="module")
def kubectl() -> Path:
    return unpacked(default_cache(), "trixie", "kubectl") / "usr/bin/kubectl"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the manifests, with the overlay of the page in its place."""
    folder = tmp_path_factory.mktemp("project")
    shutil.copytree(MANIFESTS, folder / "deploy/kubernetes")
    (folder / "deploy/kubernetes/site").mkdir()
    (folder / "deploy/kubernetes/site/kustomization.yaml").write_text(block("apiVersion: kustomize").text)
    return folder


def rendered(kubectl: Path, project: Path, command: str) -> list[Body]:
    """The objects that `kubectl kustomize FOLDER` prints; it may warn of nothing."""
    words = [str(kubectl), *command.split()[1:]]
    done = subprocess.run(words, cwd=project, check=False, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return list(yaml.safe_load_all(done.stdout))


@pytest.fixture(scope="module", params=["base", "ptp-device", "site"])
def objects(kubectl: Path, project: Path, request: pytest.FixtureRequest) -> list[Body]:
    return rendered(kubectl, project, f"kubectl kustomize deploy/kubernetes/{request.param}")


@pytest.fixture(scope="module")
def base(kubectl: Path, project: Path) -> list[Body]:
    return rendered(kubectl, project, "kubectl kustomize deploy/kubernetes/base")


def the(objects: list[Body], kind: str, name: str) -> Body:
    [found] = [each for each in objects if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return found


def pods(objects: list[Body]) -> Iterator[Body]:
    for each in objects:
        if "template" in each.get("spec", {}):
            yield each["spec"]["template"]["spec"]


@pytest.mark.parametrize("version", VERSIONS)
def test_every_object_fits_the_schema(objects: list[Body], version: str) -> None:
    """Strictly, so that a misspelled key is an error; the ServiceMonitor by a schema of ours."""
    kinds = set()
    for each in objects:
        kinds.add(each["kind"])
        if each["kind"] == "ServiceMonitor":
            jsonschema.validate(each, json.loads(Path(__file__).with_name("servicemonitor.schema.json").read_text()))
        else:
            kubernetes_validate.validate(each, version, strict=True)

    assert kinds == {
        "Namespace", "Secret", "ConfigMap", "DaemonSet", "Service", "StatefulSet", "ServiceAccount", "ClusterRole",
        "ClusterRoleBinding", "Deployment", "ServiceMonitor",
    }  # fmt: skip


def test_a_misspelled_key_is_found(base: list[Body]) -> None:
    """The validation is no formality."""
    wrong = json.loads(json.dumps(the(base, "DaemonSet", "timesyncd-node")))
    wrong["spec"]["template"]["spec"]["securityContxt"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)

    monitor = json.loads(json.dumps(the(base, "ServiceMonitor", "timesyncd-hub")))
    monitor["spec"]["endpoints"][0]["prot"] = "web"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(monitor, json.loads(Path(__file__).with_name("servicemonitor.schema.json").read_text()))


def test_no_container_has_a_privilege(objects: list[Body]) -> None:
    """Neither root nor a capability, nor the host's namespaces; only two folders of the host."""
    seen = []
    for pod in pods(objects):
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
        seen += [volume["hostPath"]["path"] for volume in pod.get("volumes", []) if "hostPath" in volume]
        for container in [*pod["containers"], *pod.get("initContainers", [])]:
            context = container["securityContext"]
            assert context == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
    assert seen == ["/run/timesyncd", "/run/ptp"]


def test_what_a_pod_names_is_there(objects: list[Body]) -> None:
    """Volumes, keys of the secret, files of the configuration, and the account."""
    secret, config = the(objects, "Secret", "timesyncd"), the(objects, "ConfigMap", "timesyncd")
    [claim] = the(objects, "StatefulSet", "timesyncd-hub")["spec"]["volumeClaimTemplates"]
    for pod in pods(objects):
        volumes = {claim["metadata"]["name"]} | {volume["name"] for volume in pod.get("volumes", [])}
        for container in pod["containers"]:
            assert {mount["name"] for mount in container.get("volumeMounts", [])} <= volumes
            used = [each["valueFrom"] for each in container.get("env", []) if "valueFrom" in each]
            assert {each["secretKeyRef"]["key"] for each in used if "secretKeyRef" in each} <= secret[
                "stringData"
            ].keys()
            words = " ".join(container["command"])
            assert all(name in config["data"] for name in ("node.toml", "hub.toml") if f"/config/{name}" in words)
    assert the(objects, "ServiceAccount", "timesyncd-controller")
    assert (
        next(pods([the(objects, "Deployment", "timesyncd-controller")]))["serviceAccountName"] == "timesyncd-controller"
    )


def test_the_account_may_do_what_the_controller_does_and_no_more(objects: list[Body]) -> None:
    """The verbs that the stand-in of the API knows."""
    assert the(objects, "ClusterRole", "timesyncd-controller")["rules"] == [
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch", "patch"]}
    ]


def test_labels_and_taints_are_those_of_the_controller(objects: list[Body]) -> None:
    """The nodes' daemons run where the controller looks, also on a node that it tainted."""
    node = next(pods([the(objects, "DaemonSet", "timesyncd-node")]))
    name, _, value = SELECTOR.partition("=")

    assert node["nodeSelector"] == {name: value}
    assert node["tolerations"] == [{"key": KEY, "operator": "Exists"}]
    assert f"key: {KEY}" in block("affinity:").text


def test_the_overlay_adds_a_device_and_nothing_else(kubectl: Path, project: Path, base: list[Body]) -> None:
    """One resource of a device plugin in the nodes' daemon."""
    with_device = rendered(kubectl, project, "kubectl kustomize deploy/kubernetes/ptp-device")
    changed = [(one, other) for one, other in zip(base, with_device, strict=True) if one != other]

    assert [one["kind"] for one, _ in changed] == ["DaemonSet"]
    limits = next(pods([changed[0][1]]))["containers"][0]["resources"]["limits"]
    assert limits == {"memory": "512Mi", "timesyncd.io/ptp": 1}


def settings(objects: list[Body], name: str, folder: Path) -> Config:
    """The configuration as the pod makes it, with the secrets of the objects. Raises ConfigError."""
    for key, value in the(objects, "Secret", "timesyncd")["stringData"].items():
        (folder / key).write_text(value)
    text = the(objects, "ConfigMap", "timesyncd")["data"][name].replace("@NODE@", "node-a")
    return parse(tomllib.loads(text.replace("/secret/", f"{folder}/")), options_of, name)


@pytest.mark.parametrize("name", ["node.toml", "hub.toml"])
def test_the_configurations_are_valid(kubectl: Path, project: Path, name: str, tmp_path: Path) -> None:
    """With the page's overlay, which sets the image too."""
    site = rendered(kubectl, project, block("kubectl kustomize").commands)

    assert {each["containers"][0]["image"] for each in pods(site)} == {"registry.example.com/timesyncd:0.1.0"}
    assert settings(site, name, tmp_path).node.name == "node-a"


def test_the_page_s_broker_and_a_cluster_without_the_prometheus_operator(
    kubectl: Path, project: Path, tmp_path: Path
) -> None:
    """The overlay with both additions renders the broker's name, and no ServiceMonitor."""
    shutil.copytree(project / "deploy", tmp_path / "deploy")
    site = tmp_path / "deploy/kubernetes/site"
    overlay = block("apiVersion: kustomize").text.replace("  - ../base\n", "  - ../base\n  - broker.yaml\n")
    (site / "kustomization.yaml").write_text(overlay + block("  - patch: |\n      apiVersion: monitoring").text)
    (site / "broker.yaml").write_text(block("apiVersion: v1\nkind: Service\n").text)
    objects = rendered(kubectl, tmp_path, block("kubectl kustomize").commands)

    assert the(objects, "Service", "mosquitto")["spec"]["externalName"] == "broker.example.com"
    assert "ServiceMonitor" not in {each["kind"] for each in objects}


def test_a_hub_refuses_the_secrets_of_the_base(base: list[Body], tmp_path: Path) -> None:
    """So no hub runs with a token that everybody can read here."""
    for key, value in the(base, "Secret", "timesyncd")["stringData"].items():
        (tmp_path / key).write_text(value)
    text = the(base, "ConfigMap", "timesyncd")["data"]["hub.toml"].replace("@NODE@", "hub")
    (tmp_path / "hub.toml").write_text(text.replace("/secret/", f"{tmp_path}/"))
    command = [sys.executable, "-m", "timesyncd", "run", "--config", str(tmp_path / "hub.toml")]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)

    assert done.returncode == 2
    assert "16 characters" in done.stderr


async def test_the_page_s_commands_work_on_an_api(kubectl: Path, tmp_path: Path) -> None:
    """They choose a node, and remove what the controller left; kubectl asks the stand-in of the API."""
    async with kubernetes() as cluster:
        config = {
            "clusters": [{"name": "c", "cluster": {"server": cluster.url}}],
            "contexts": [{"name": "x", "context": {"cluster": "c"}}],
        }
        (tmp_path / "config").write_text(
            json.dumps(config | {"apiVersion": "v1", "kind": "Config", "current-context": "x"})
        )
        environ = {
            "PATH": f"{kubectl.parent}:/usr/bin:/bin",
            "KUBECONFIG": str(tmp_path / "config"),
            "HOME": str(tmp_path),
        }

        async def typed(begin: str) -> None:
            process = await asyncio.create_subprocess_exec("sh", "-euc", block(begin).commands, env=environ)
            assert await process.wait() == 0

        cluster.put("node-a")["metadata"]["labels"].clear()
        await typed(ON_AN_API[0])
        chosen = dict(cluster.nodes["node-a"]["metadata"]["labels"])
        cluster.put("node-a", [{"key": KEY, "value": "unknown", "effect": "NoSchedule"}], **{KEY: "unknown"})
        await typed(ON_AN_API[1])

        assert chosen == {"timesyncd.io/node": "true"}
        assert (cluster.label("node-a"), cluster.taints("node-a")) == (None, [])


def test_every_block_of_the_page_is_tried() -> None:
    """No command of the page is one that no test runs."""
    blocks = operations_manual.parse(PAGE)

    assert [each.text for each in blocks if not each.text.startswith((*USED, *ON_AN_API))] == []
    assert len(blocks) == len(USED) + len(ON_AN_API)


def test_the_folders_of_a_node_are_made_for_the_pod_s_user(base: list[Body], tmp_path: Path) -> None:
    """By the page's command, whose paths are below another root here."""
    commands = block("install -D").commands.replace("/usr/lib/", f"{tmp_path}/usr/lib/")
    subprocess.run(
        ["sh", "-euc", commands.replace("systemd-tmpfiles", f"systemd-tmpfiles --root={tmp_path}")],
        cwd=PROJECT,
        check=True,
    )
    node = next(pods([the(base, "DaemonSet", "timesyncd-node")]))["securityContext"]
    run, ptp = (tmp_path / "run/timesyncd").stat(), (tmp_path / "run/ptp").stat()

    assert (run.st_uid, run.st_gid, oct(run.st_mode)[-4:]) == (node["runAsUser"], node["runAsGroup"], "0755")
    assert (ptp.st_uid, ptp.st_gid, oct(ptp.st_mode)[-4:]) == (0, node["runAsGroup"], "2750")


def test_the_page_names_the_reason_of_a_missing_device() -> None:
    """As the driver writes it; tests/dist/test_container.py sees it in a container."""
    assert "`/dev/ptp0: no such device`" in PAGE
