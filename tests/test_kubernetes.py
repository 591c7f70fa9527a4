"""Tests that the manifests in ``configs/kubernetes`` are valid and refer to existing things."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sparring.errors import ConfigError
from sparring_cli import read_document
from sparring_cli.application import main

from .manifests import (
    FOLDER,
    Manifest,
    containers_of,
    filled_secrets,
    find_manifest,
    manifests,
    pod_of,
    secrets_and_keys,
)

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

from command_lines import parse_command

SCHEMAS = {
    "trainer.kubeflow.org/v1alpha1": "trainer-v1alpha1.yaml",
    "cert-manager.io/v1": "cert-manager-v1.yaml",
    "monitoring.coreos.com/v1": "monitoring-v1.yaml",
}
"""Schemas of APIs that are not part of Kubernetes."""
NATIVE = [each for each in manifests() if each.api not in SCHEMAS]
WITH_PODS = [each for each in manifests() if pod_of(each.body) is not None]


def named(each: Manifest) -> str:
    return f"{each.path.name}-{each.kind}-{each.name}"


of_all = pytest.mark.parametrize("manifest", manifests(), ids=named)
of_pods = pytest.mark.parametrize("manifest", WITH_PODS, ids=named)


def pod(manifest: Manifest) -> dict[str, Any]:
    template = pod_of(manifest.body)
    assert template is not None
    return template


@pytest.mark.parametrize("manifest", NATIVE, ids=named)
def test_the_last_three_releases_of_kubernetes_take_a_manifest(manifest: Manifest) -> None:
    validated(manifest.body)


def validated(body: dict[str, Any]) -> None:
    validator = pytest.importorskip(
        "kubernetes_validate", reason="kubernetes-validate is not installed"
    )
    releases = {tuple(map(int, each.split("."))) for each in validator.utils.all_versions()}
    for release in sorted(releases)[-3:]:
        validator.validate(body, ".".join(map(str, release)), strict=True)


def test_a_misspelled_field_is_detected() -> None:
    validator = pytest.importorskip(
        "kubernetes_validate", reason="kubernetes-validate is not installed"
    )
    body = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x"}, "spec": {"port": 1}}
    with pytest.raises(validator.ValidationError):
        validator.validate(body, validator.utils.latest_version(), strict=True)


@pytest.mark.parametrize(
    "manifest", [each for each in manifests() if each not in NATIVE], ids=named
)
def test_resources_of_operators_have_only_known_fields(manifest: Manifest) -> None:
    schemas = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
    known = read_document(Path(__file__).parent / "schemas" / SCHEMAS[manifest.api]).value
    schemas.validate(manifest.body, known[manifest.kind])
    with pytest.raises(schemas.ValidationError):
        schemas.validate({**manifest.body, "spec": {"misspelled": 1}}, known[manifest.kind])
    if manifest.kind == "TrainingRuntime":
        (job,) = manifest.body["spec"]["template"]["spec"]["replicatedJobs"]
        # The names by which the trainer finds the container that a TrainJob changes.
        label = "trainer.kubeflow.org/trainjob-ancestor-step"
        assert (job["name"], job["template"]["metadata"]["labels"][label]) == ("node", "trainer")
        assert [each["name"] for each in pod(manifest)["spec"]["containers"]] == ["node"]
        head = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "node"}}
        validated({**head, "spec": job["template"]["spec"]})


def test_a_train_job_sets_all_variables_that_start_the_ranks() -> None:
    distributed_run = pytest.importorskip("torch.distributed.run", reason="torch is not installed")
    (job,) = [each for each in manifests() if each.kind == "TrainJob"]
    (runtime,) = [each for each in manifests() if each.kind == "TrainingRuntime"]
    train = find_manifest("Job", "train")
    trainer, of_job = job.body["spec"]["trainer"], pod(train)["spec"]["containers"][0]
    (node,) = pod(runtime)["spec"]["containers"]
    variables = {each["name"]: each.get("value") for each in node["env"]}
    least, most = map(int, variables["PET_NNODES"].split(":"))
    assert 1 <= least < most == trainer["numNodes"] == runtime.body["spec"]["mlPolicy"]["numNodes"]
    # The policy `torch` would replace PET_NNODES by a fixed number.
    assert "torch" not in runtime.body["spec"]["mlPolicy"]
    assert variables["PET_RDZV_ENDPOINT"] == f"{job.name}-node-0-0.{job.name}:29500"
    assert f"--nproc-per-node={variables['PET_NPROC_PER_NODE']}" in of_job["args"]
    store = {"name": "TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "value": "1"}
    assert store in node["env"]
    assert store in of_job["env"]
    assert trainer["resourcesPerNode"] == of_job["resources"]
    plan_of_job = "plan=/etc/sparring/config/plan.yaml"
    expected = of_job["args"][of_job["args"].index("-m") :]
    assert trainer["args"] == ["plan=auto" if each == plan_of_job else each for each in expected]
    parser = distributed_run.get_args_parser()
    actions = {each.dest.upper() for each in parser._actions}
    assert {each.removeprefix("PET_") for each in variables if each.startswith("PET_")} <= actions


def test_pods_that_recommend_share_all_parts() -> None:
    job = find_manifest("Job", "recommend")
    (container,) = pod(job)["spec"]["containers"]
    assert job.body["spec"]["completionMode"] == "Indexed"
    expected = f"--parts=$(JOB_COMPLETION_INDEX)/{job.body['spec']['completions']}"
    assert expected in container["args"]


@pytest.mark.parametrize("file", ["train.yaml", "serve.yaml"])
def test_a_file_equals_the_output_of_the_command_in_its_header(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written = (FOLDER / file).read_text()
    (command,) = re.findall(r"^#   sparring (plan kubernetes .*)$", written, re.M)
    config_of("train", "plan.yaml", tmp_path)
    (tmp_path / "configs").symlink_to(FOLDER.parent)
    monkeypatch.chdir(tmp_path)
    assert main(command.split()) == 0
    assert capsys.readouterr().out == written


@of_all
def test_a_manifest_has_labels_and_no_namespace(manifest: Manifest) -> None:
    assert manifest.body["metadata"]["labels"]["app.kubernetes.io/part-of"] == "sparring"
    assert "namespace" not in manifest.body["metadata"]


@of_pods
def test_pods_have_only_the_permissions_that_they_need(manifest: Manifest) -> None:
    spec = pod(manifest)["spec"]
    of_pod = spec["securityContext"]
    assert of_pod["runAsNonRoot"] is True
    assert of_pod["runAsUser"] > 0
    assert of_pod["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["automountServiceAccountToken"] is False
    for container in spec["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert {"cpu", "memory"} <= container["resources"]["requests"].keys()
        assert "memory" in container["resources"]["limits"]


@of_pods
def test_volumes_and_secrets_of_a_pod_exist(manifest: Manifest) -> None:
    spec = pod(manifest)["spec"]
    known = {(each.kind, each.name) for each in manifests()}
    claims = {
        each["metadata"]["name"] for each in manifest.body["spec"].get("volumeClaimTemplates", ())
    }
    volumes = {each["name"]: each for each in spec.get("volumes", ())}
    for volume in volumes.values():
        if "configMap" in volume:
            assert ("ConfigMap", volume["configMap"]["name"]) in known
        if "persistentVolumeClaim" in volume:
            assert ("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"]) in known
        if "secret" in volume:
            keys = secrets_and_keys()[volume["secret"]["secretName"]]
            assert {each["key"] for each in volume["secret"].get("items", ())} <= keys
    mounted = {
        each["name"] for container in spec["containers"] for each in container["volumeMounts"]
    }
    assert mounted == volumes.keys() | claims
    for variable in (each for container in spec["containers"] for each in container.get("env", ())):
        if (named := variable.get("valueFrom", {}).get("secretKeyRef")) is not None:
            assert named["key"] in secrets_and_keys()[named["name"]]


@of_pods
def test_selected_labels_equal_the_labels_of_pods(manifest: Manifest) -> None:
    labels = pod(manifest)["metadata"]["labels"]
    selected = manifest.body["spec"].get("selector", {}).get("matchLabels", {})
    assert selected.items() <= labels.items()
    if (service := manifest.body["spec"].get("serviceName")) is not None:
        (found,) = [each for each in manifests() if (each.kind, each.name) == ("Service", service)]
        assert found.body["spec"]["selector"].items() <= labels.items()


@pytest.mark.parametrize(
    "manifest",
    [
        each
        for each in manifests()
        if each.kind in {"NetworkPolicy", "PodDisruptionBudget", "Service", "PodMonitor"}
        # No pod here has its label: test_network_policies.py.
        and each.name != "object-store"
    ],
    ids=named,
)
def test_every_selector_finds_pods_with_its_ports(manifest: Manifest) -> None:
    spec = manifest.body["spec"]
    selector = spec.get("podSelector") or spec["selector"]
    names = {each["port"] for each in spec.get("podMetricsEndpoints", ())}
    selector = selector.get("matchLabels", selector)
    chosen = [
        pod(each)
        for each in WITH_PODS
        if selector.items() <= pod(each)["metadata"]["labels"].items()
    ]
    assert chosen
    ports = [port["port"] for rule in spec.get("ingress", ()) for port in rule.get("ports", ())]
    ports += [port["port"] for port in spec.get("ports", ())]
    for each in chosen:
        (container,) = each["spec"]["containers"]
        assert set(ports) <= {port["containerPort"] for port in container.get("ports", ())}
        assert names <= {port["name"] for port in container.get("ports", ())}


def command_lines() -> Iterator[tuple[str, list[str]]]:
    for manifest in manifests():
        for name, container in containers_of(manifest.body):
            yield f"{named(manifest)}-{name}", [*container["command"], *container["args"]]


@pytest.mark.parametrize("line", [pytest.param(line, id=name) for name, line in command_lines()])
def test_commands_and_options_of_a_manifest_exist(line: list[str]) -> None:
    program, *words = line
    if program == "torchrun":
        run = pytest.importorskip("torch.distributed.run", reason="torch is not installed")
        given = run.get_args_parser().parse_args(words)
        assert given.module
        assert given.training_script == "sparring"
        program, words = "sparring", given.training_script_args
    if program == "sparring":
        parse_command([re.sub(r"\$\(\w+\)", "1", word) for word in words])
    else:
        assert program == "redis-server"


def test_an_unknown_option_is_detected() -> None:
    with pytest.raises(Exception, match="No such option: --shrad"):
        parse_command(["serve", "serving.yaml", "--shrad", "1/2"])


def config_of(name: str, key: str, folder: Path) -> Path:
    path = folder / key
    path.write_text(find_manifest("ConfigMap", name).body["data"][key])
    return path


def stateful_sets(file: str) -> list[Manifest]:
    """Returns the StatefulSets of a lookup service: one per replica, with a pod per shard."""
    found = [each for each in manifests() if each.path.name == file and each.kind == "StatefulSet"]
    assert found
    return found


@pytest.mark.parametrize(
    ("file", "service", "key"),
    [("serve.yaml", "serve", "serving.yaml"), ("parameters.yaml", "parameters", "parameters.yaml")],
)
def test_addresses_of_a_service_equal_those_of_its_pods(
    file: str, service: str, key: str, tmp_path: Path
) -> None:
    serving = pytest.importorskip("sparring_serve", reason="sparring-serve is not installed")
    config = serving.read_serving_config(config_of(service, key, tmp_path))
    sets = stateful_sets(file)
    for shard, replicas in enumerate(config.shards, 1):
        assert list(replicas) == [f"{each.name}-{shard}.{service}:7433" for each in sets]
    assert config.server.address == "0.0.0.0:7433"
    for number, each in enumerate(sets, 1):
        spec = each.body["spec"]
        assert spec["replicas"] == len(config.shards)
        assert spec["ordinals"] == {"start": 1}
        (container,) = pod(each)["spec"]["containers"]
        words = container["args"]
        assert f"--shard=$(SHARD)/{len(config.shards)}" in words
        if len(sets) > 1:
            assert f"--replica={number}" in words
        grace = pod(each)["spec"]["terminationGracePeriodSeconds"]
        assert config.server.drain_seconds < grace


SERVICES = [("serve.yaml", "serving.yaml"), ("parameters.yaml", "parameters.yaml")]


@pytest.mark.parametrize(("file", "key"), SERVICES)
def test_a_service_uses_tls_and_tokens_and_its_certificate_has_the_names_of_its_pods(
    file: str, key: str, tmp_path: Path
) -> None:
    serving = pytest.importorskip("sparring_serve", reason="sparring-serve is not installed")
    config = serving.read_serving_config(config_of(file.removesuffix(".yaml"), key, tmp_path))
    certificate = find_manifest("Certificate", file.removesuffix(".yaml")).body["spec"]
    hosts = [address.rpartition(":")[0] for replicas in config.shards for address in replicas]
    assert certificate["dnsNames"] == hosts
    assert not config.server.insecure
    assert not config.client.insecure
    for each in stateful_sets(file):
        spec = pod(each)["spec"]
        mounts = {
            mount["mountPath"]: next(
                volume["secret"]["secretName"]
                for volume in spec["volumes"]
                if volume["name"] == mount["name"]
            )
            for mount in spec["containers"][0]["volumeMounts"]
            if mount["name"] in ("tokens", "tls")
        }
        tls = config.server.tls
        for path in (tls.certificate_file, tls.key_file, config.server.token_file):
            assert path.name in secrets_and_keys()[mounts[str(path.parent)]]
        assert mounts[str(tls.key_file.parent)] == certificate["secretName"]
    # Issuers lead from the certificate to an authority that signs itself.
    issuers = {each.name: each.body["spec"] for each in manifests() if each.kind == "Issuer"}
    signed = issuers[certificate["issuerRef"]["name"]]["ca"]["secretName"]
    (authority,) = [
        each.body["spec"]
        for each in manifests()
        if each.kind == "Certificate" and each.body["spec"]["secretName"] == signed
    ]
    assert authority["isCA"] is True
    assert issuers[authority["issuerRef"]["name"]] == {"selfSigned": {}}


@pytest.mark.parametrize(
    ("client", "service", "key"),
    [("client", "serve", "serving.yaml"), ("trainer", "parameters", "parameters.yaml")],
)
def test_a_client_mounts_its_token_and_the_authority_but_no_key_of_servers(
    client: str, service: str, key: str, tmp_path: Path
) -> None:
    serving = pytest.importorskip("sparring_serve", reason="sparring-serve is not installed")
    config = serving.read_serving_config(config_of(service, key, tmp_path))
    job = find_manifest("Job", client)
    spec = pod(job)["spec"]
    paths = {each["name"]: each["mountPath"] for each in spec["containers"][0]["volumeMounts"]}
    secrets = {each["name"]: each["secret"] for each in spec["volumes"] if "secret" in each}
    assert paths["token"] == str(config.client.token_file.parent)
    assert secrets_and_keys()[secrets["token"]["secretName"]] == {config.client.token_file.name}
    assert paths["tls"] == str(config.client.tls.ca_file.parent)
    assert [each["path"] for each in secrets["tls"]["items"]] == [config.client.tls.ca_file.name]


@pytest.mark.parametrize(("file", "key"), SERVICES)
def test_probes_of_servers_are_health_calls_in_plain_text(
    file: str, key: str, tmp_path: Path
) -> None:
    serving = pytest.importorskip("sparring_serve", reason="sparring-serve is not installed")
    config = serving.read_serving_config(config_of(file.removesuffix(".yaml"), key, tmp_path))
    for each in stateful_sets(file):
        (container,) = pod(each)["spec"]["containers"]
        port = {"port": config.server.health_port}
        assert container["startupProbe"]["grpc"] == port
        assert container["readinessProbe"]["grpc"] == port
        assert container["livenessProbe"]["grpc"] == {**port, "service": "liveness"}


@of_pods
def test_no_probe_only_connects(manifest: Manifest) -> None:
    for container in pod(manifest)["spec"]["containers"]:
        probes = [each for name, each in container.items() if name.endswith("Probe")]
        assert not any("tcpSocket" in each for each in probes)


@pytest.mark.parametrize("manifest", WITH_PODS, ids=named)
def test_pods_of_a_service_are_spread_over_zones_and_nodes(manifest: Manifest) -> None:
    spec, labels = pod(manifest)["spec"], pod(manifest)["metadata"]["labels"]
    constraints = spec.get("topologySpreadConstraints", ())
    is_service = manifest.kind == "StatefulSet" and manifest.body["spec"]["replicas"] > 1
    assert [each["topologyKey"] for each in constraints] == (
        ["topology.kubernetes.io/zone", "kubernetes.io/hostname"] if is_service else []
    )
    for each in constraints:
        assert each["labelSelector"]["matchLabels"].items() <= labels.items()
        # A cluster with one zone, or with fewer nodes than replicas, must run the pods too.
        assert each["whenUnsatisfiable"] == "ScheduleAnyway"


def test_tokens_are_rejected_until_they_are_filled_in(tmp_path: Path) -> None:
    security = pytest.importorskip(
        "sparring_serve.security", reason="sparring-serve is not installed"
    )
    made = filled_secrets()
    raw = {each.name: each.body["stringData"] for each in manifests() if each.kind == "Secret"}
    assert made.keys() == raw.keys()
    path = tmp_path / "tokens"
    for service, client, role in (
        ("serve-tokens", "serve-client-token", "pull"),
        ("parameters-tokens", "parameters-client-token", "push"),
        ("parameters-tokens", "parameters-tokens", "admin"),
    ):
        path.write_text(made[service]["tokens"])
        token = security.read_token(made[client]["token"].encode())
        security.Tokens(path).check({"authorization": f"Bearer {token}"}, role)
        path.write_text(raw[service]["tokens"])
        with pytest.raises(ConfigError):
            security.Tokens(path)
        with pytest.raises(ConfigError):
            security.read_token(raw[client]["token"].encode())
    redis = made["redis-password"]
    assert redis["redis.conf"] == f"requirepass {redis['password']}\n"
    # Redis rejects a directive with two values.
    assert len(raw["redis-password"]["redis.conf"].split()) == 3
    # All texts are different.
    texts = {text for each in made.values() for text in each.values()}
    assert len(texts) == sum(map(len, made.values()))
