"""Tests which pods may call which on which port, as network plugins read ``network-policy.yaml``."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from sparring_cli.application import main

from .manifests import FOLDER, manifests, pod_of

HERE = "default"
RENDEZVOUS, GRPC, METRICS, HEALTH, REDIS = 29500, 7433, 9433, 7434, 6379


@dataclass(frozen=True)
class Pod:
    """The labels of a pod and of its namespace."""

    name: str
    labels: Mapping[str, str]
    namespace: str = HERE
    address: str = "10.1.2.3"
    ports: frozenset[tuple[int, str]] = field(default=frozenset())


def ours() -> dict[str, Pod]:
    """A pod of each kind of the manifests, by the label `app`."""
    found: dict[str, Pod] = {}
    for each in manifests():
        template = pod_of(each.body)
        if template is not None:
            labels = template["metadata"]["labels"]
            (container,) = template["spec"]["containers"]
            ports = {(port["containerPort"], "TCP") for port in container.get("ports", ())}
            if (same := found.get(labels["app"])) is not None:
                ports |= same.ports
            found[labels["app"]] = Pod(labels["app"], labels, ports=frozenset(ports))
    return found


NAME_SERVER = Pod(
    "name-server",
    {"k8s-app": "kube-dns"},
    "kube-system",
    "10.1.0.10",
    frozenset({(53, "UDP"), (53, "TCP")}),
)
PROMETHEUS = Pod("prometheus", {"app": "prometheus"}, "monitoring", "10.1.9.9")
OWN_CLIENT = Pod("own-client", {"sparring-client": "true"})
OWN_TRAINER = Pod("own-trainer", {"sparring-trainer": "true"})
STRANGER = Pod("stranger", {"app": "shop"}, ports=frozenset({(8080, "TCP")}))
OTHER_NAMESPACE = Pod("other-namespace", {"sparring-client": "true", "app": "train"}, "shop")
OBJECT_STORE = Pod("object-store", {}, "", "52.1.2.3", frozenset({(443, "TCP"), (9000, "TCP")}))
OTHERS = (
    NAME_SERVER,
    PROMETHEUS,
    OWN_CLIENT,
    OWN_TRAINER,
    STRANGER,
    OTHER_NAMESPACE,
    OBJECT_STORE,
)


def fits(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    assert selector.keys() <= {"matchLabels"}
    return bool(selector.get("matchLabels", {}).items() <= labels.items())


def is_peer(peer: Mapping[str, Any], pod: Pod) -> bool:
    """Returns whether a peer of a rule selects a pod, for policies in the namespace `HERE`."""
    if "ipBlock" in peer:
        block = ipaddress.ip_network(peer["ipBlock"]["cidr"])
        assert peer["ipBlock"].keys() == {"cidr"}
        return ipaddress.ip_address(pod.address) in block
    spaces = peer.get("namespaceSelector")
    in_space = (
        pod.namespace == HERE
        if spaces is None
        else fits(spaces, {"kubernetes.io/metadata.name": pod.namespace})
    )
    return in_space and fits(peer.get("podSelector", {}), pod.labels)


def allows(direction: str, pod: Pod, other: Pod, port: int, protocol: str) -> bool:
    """Returns whether the policies of a pod allow calls in one direction."""
    if pod.namespace != HERE:
        return True
    policies = [
        each.body["spec"]
        for each in manifests()
        if each.kind == "NetworkPolicy"
        and direction in each.body["spec"]["policyTypes"]
        and fits(each.body["spec"]["podSelector"], pod.labels)
    ]
    rules: Iterator[Mapping[str, Any]] = (
        rule for policy in policies for rule in policy.get(direction.lower(), ())
    )
    key = "from" if direction == "Ingress" else "to"
    return not policies or any(
        any(is_peer(peer, other) for peer in rule[key])
        and (
            "ports" not in rule
            or any(
                (each["port"], each.get("protocol", "TCP")) == (port, protocol)
                for each in rule["ports"]
            )
        )
        for rule in rules
    )


def may_call(source: Pod, target: Pod, port: int, protocol: str = "TCP") -> bool:
    return allows("Egress", source, target, port, protocol) and allows(
        "Ingress", target, source, port, protocol
    )


def test_pods_may_call_only_the_pods_that_they_need() -> None:
    pods = [*ours().values(), *OTHERS]
    found = {
        (source.name, target.name, port)
        for source in pods
        for target in pods
        for port, protocol in target.ports
        if "sparring" in f"{source.labels}{target.labels}"
        and may_call(source, target, port, protocol)
    }
    of_sparring = set(ours())
    expected = {(name, "name-server", 53) for name in (*of_sparring, "own-client", "own-trainer")}
    expected |= {
        ("train", "train", RENDEZVOUS),
        ("train", "redis", REDIS),
        ("serve", "redis", REDIS),
        ("parameters", "redis", REDIS),
        ("parameters", "parameters", GRPC),
        ("client", "serve", GRPC),
        ("own-client", "serve", GRPC),
        ("trainer", "parameters", GRPC),
        ("own-trainer", "parameters", GRPC),
        ("prometheus", "serve", METRICS),
        ("prometheus", "parameters", METRICS),
    }
    # Calls of the user's pods to others are not limited.
    expected |= {
        (name, target, port)
        for name in ("own-client", "own-trainer")
        for target, port in (("stranger", 8080), ("object-store", 443), ("object-store", 9000))
    }
    expected |= {("other-namespace", "stranger", 8080), ("other-namespace", "object-store", 443)}
    expected |= {("other-namespace", "object-store", 9000), ("other-namespace", "name-server", 53)}
    assert found == expected


def test_ranks_reach_each_other_on_any_port() -> None:
    train = ours()["train"]
    assert may_call(train, train, 40_001)
    assert not may_call(STRANGER, train, 40_001)
    assert not may_call(OTHER_NAMESPACE, train, RENDEZVOUS)


def test_only_the_kubelet_reaches_the_health_port() -> None:
    for name in ("serve", "parameters"):
        ports = dict.fromkeys(port for port, _ in ours()[name].ports)
        assert HEALTH in ports
        assert not any(may_call(each, ours()[name], HEALTH) for each in (*ours().values(), *OTHERS))


def test_pods_with_the_label_reach_object_stores(capsys: pytest.CaptureFixture[str]) -> None:
    publisher = ours()["publisher"]
    assert not may_call(publisher, OBJECT_STORE, 443)
    labelled = Pod("labelled", {**publisher.labels, "sparring-object-store": "true"})
    assert may_call(labelled, OBJECT_STORE, 443)
    assert not may_call(labelled, OBJECT_STORE, 9000)
    # A service that reads from a bucket needs it.
    command = ["plan", "kubernetes", "s3://films/served", "--bytes", "1GiB", "--image", "x"]
    assert main(command) == 0
    assert 'sparring-object-store: "true"' in capsys.readouterr().out
    assert "sparring-object-store" in (FOLDER / "network-policy.yaml").read_text()


def test_every_pod_of_the_manifests_is_isolated_in_both_directions() -> None:
    for pod in ours().values():
        assert not may_call(STRANGER, pod, 1)
        assert not may_call(pod, STRANGER, 8080)
