"""Runs pods of the manifests as processes, with the names, mounts, users and probes of a cluster.

A pod has a network namespace with an address, a name that other pods can resolve, and a read-only root
file system of this machine with the volumes of its manifest. A hub namespace connects the pods and
represents the node from which the kubelet probes. The network of this machine is not changed.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["Cluster", "Pod", "why_no_pods"]

ROOT = Path(__file__).resolve().parents[1]

# Runs in the pod's mount namespace: an overlay of this machine's root, in which any mount point can be
# created, made read-only. Arguments: folder, name, directory, user; `mounts` is a separate script.
_ENTER = """
set -e
folder=$1; name=$2; directory=$3; user=$4; shift 4
mount --make-rprivate /
hostname "$name"
mount -t tmpfs tmpfs "$folder/root"
cd "$folder/root"
mkdir upper work merged
mount -t overlay overlay -o lowerdir=/,upperdir=upper,workdir=work merged
root=$folder/root/merged
for each in proc dev sys; do mount --rbind "/$each" "$root/$each"; done
mount --bind "$folder/hosts" "$root/etc/hosts"
. "$folder/mounts"
mount -o remount,ro,bind "$root"
exec chroot "$root" setpriv --reuid "$user" --regid "$user" --clear-groups --no-new-privs \
    --inh-caps=-all --bounding-set=-all -- sh -c 'cd "$1" && shift && exec "$@"' sh "$directory" "$@"
"""

_GRPC_PROBE = """
import sys, time, grpc
from sparring_serve.wire.open_inference import HEALTH, HealthReply, HealthRequest, ServingStatus
from sparring_serve.wire.fields import decode, encode
address, seconds, service = sys.argv[1], float(sys.argv[2]), sys.argv[3]
end = time.monotonic() + seconds
while True:
    with grpc.insecure_channel(address) as channel:
        try:
            answer = channel.unary_unary(f"/{HEALTH}/Check")(encode(HealthRequest(service)), timeout=1)
            if decode(HealthReply, answer).status == ServingStatus.SERVING:
                break
        except grpc.RpcError as error:
            last = error
    if time.monotonic() > end:
        sys.exit("not ready")
    time.sleep(0.2)
"""


@cache
def why_no_pods() -> str | None:
    """Returns why this machine cannot run pods, or None if it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [
        each
        for each in ("ip", "unshare", "nsenter", "setpriv", "chroot")
        if shutil.which(each) is None
    ]
    if missing:
        return f"not installed: {', '.join(missing)}"
    tried = subprocess.run(
        ["unshare", "--net", "--mount", "--uts", "sh", "-ec", _TRY],
        capture_output=True,
        check=False,
    )
    if tried.returncode:
        return f"no namespaces: {tried.stderr.decode().strip()}"
    return (
        None if _may_run(0) else "root without its rights cannot read this checkout or its Python"
    )


_TRY = """
ip link add type veth
mount -t tmpfs tmpfs /mnt
mkdir /mnt/upper /mnt/work /mnt/merged
mount -t overlay overlay -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work /mnt/merged
"""


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


@dataclass
class Pod:
    """A running pod."""

    name: str
    address: str
    namespace: str
    folder: Path
    env: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] = field(init=False)

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def processes(self) -> list[int]:
        return [int(each) for each in _run("ip", "netns", "pids", self.namespace).split()]

    def kill(self) -> None:
        """Kills all its processes, like a failing node."""
        for each in self.processes():
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        self.process.wait()

    def terminate(self, seconds: float) -> int:
        """Sends SIGTERM, like the kubelet; returns the exit code. After `seconds` sends SIGKILL: -9."""
        self.process.terminate()
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            return self.process.returncode


class Cluster:
    """Pods and shared resources. Use it in a ``with`` block, which removes everything at the end.

    Args:
        folder: folder for volumes and logs.
        config_maps: name → file → text.
        secrets: name → file → text.
    """

    def __init__(
        self,
        folder: Path,
        config_maps: Mapping[str, Mapping[str, str]],
        secrets: Mapping[str, Mapping[str, str]],
    ) -> None:
        self.folder = folder
        self.data = folder / "claims/sparring-data"
        self._maps = {"configMap": config_maps, "secret": secrets}
        self._names = f"sparring-{os.getpid()}-{next(_numbers)}"
        self._addresses = itertools.count(2)
        self._pods: dict[str, Pod] = {}
        self._services: dict[str, str] = {}
        self._all = ExitStack()

    def __enter__(self) -> Cluster:
        self.data.mkdir(parents=True)
        self.data.chmod(0o777)
        self._hub = self._add_namespace("hub")
        _run("ip", "-n", self._hub, "link", "add", "pods", "type", "bridge")
        _run("ip", "-n", self._hub, "addr", "add", "10.77.0.1/16", "dev", "pods")
        _run("ip", "-n", self._hub, "link", "set", "pods", "up")
        return self

    def __exit__(self, *_: object) -> None:
        for pod in list(self._pods.values()):
            self.remove(pod)
        self._all.close()

    def _add_namespace(self, name: str) -> str:
        namespace = f"{self._names}-{name}"
        _run("ip", "netns", "add", namespace)
        self._all.callback(_run, "ip", "netns", "delete", namespace)
        _run("ip", "-n", namespace, "link", "set", "lo", "up")
        return namespace

    def apply(self, config_map: str, name: str, text: str) -> None:
        """Replaces a file of a ConfigMap for pods that are started later."""
        maps = self._maps["configMap"]
        self._maps["configMap"] = {**maps, config_map: {**maps[config_map], name: text}}

    def start(
        self,
        template: Mapping[str, Any],
        name: str,
        service: str,
        *,
        labels: Mapping[str, str] = {},
        more: Sequence[str] = (),
        env: Mapping[str, str] = {},
    ) -> Pod:
        """Starts a pod with a separate address.

        Args:
            template: template of the pod, as in its manifest.
            name: name of the pod.
            service: the headless service that resolves the name.
            labels: labels that a controller adds.
            more: arguments after those of the manifest.
            env: variables that a controller adds.
        """
        number = next(self._addresses)
        pod = Pod(
            name,
            f"10.77.0.{number}",
            self._add_namespace(f"{number}"),
            self.folder / f"{name}-{number}",
        )
        (pod.folder / "root").mkdir(parents=True)
        (pod.folder / "hosts").touch()
        _run(
            "ip", "-n", self._hub, "link", "add", f"pod{number}", "type", "veth",
            "peer", "name", "eth0", "netns", pod.namespace,
        )  # fmt: skip
        _run("ip", "-n", self._hub, "link", "set", f"pod{number}", "master", "pods", "up")
        _run("ip", "-n", pod.namespace, "addr", "add", f"{pod.address}/16", "dev", "eth0")
        _run("ip", "-n", pod.namespace, "link", "set", "eth0", "up")
        self._pods[name], self._services[name] = pod, service
        self._write_hosts()
        spec = template["spec"]
        (container,) = spec["containers"]
        user = (
            spec["securityContext"]["runAsUser"]
            if _may_run(spec["securityContext"]["runAsUser"])
            else 0
        )
        (pod.folder / "mounts").write_text(self._mounts(pod, spec, container, user))
        fields = {f"metadata.labels['{label}']": text for label, text in labels.items()}
        fields["status.podIP"] = pod.address
        given = {**_IMAGE, **self._environment(container, fields), **env}
        pod.env = given
        words = [*container["command"], *container["args"], *more]
        words = [re.sub(r"\$\((\w+)\)", lambda found: given[found[1]], word) for word in words]
        directory = container.get("workingDir", "/")
        enter = [
            "ip",
            "netns",
            "exec",
            pod.namespace,
            "unshare",
            "--mount",
            "--uts",
            "sh",
            "-c",
            _ENTER,
        ]
        with (pod.folder / "log").open("wb") as log:
            pod.process = subprocess.Popen(
                [*enter, "sh", str(pod.folder), name, directory, str(user), *words],
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=given,
            )  # fmt: skip
        return pod

    def remove(self, pod: Pod) -> None:
        """Kills a pod and removes its name."""
        pod.kill()
        if self._pods.get(pod.name) is pod:
            del self._pods[pod.name]
        self._write_hosts()

    def probe(self, pod: Pod, probe: Mapping[str, Any], seconds: float) -> bool:
        """Returns whether a probe of the manifest succeeds within the given time."""
        if "grpc" in probe:
            program = [
                sys.executable,
                "-c",
                _GRPC_PROBE,
                f"{pod.address}:{probe['grpc']['port']}",
                str(seconds),
                probe["grpc"].get("service", ""),
            ]
            return self._from_hub(program) == 0
        return self._repeated(self._enter(pod, *probe["exec"]["command"]), seconds, pod.env)

    @staticmethod
    def _enter(pod: Pod, *command: str) -> list[str]:
        return ["nsenter", "--target", str(pod.process.pid), "--mount", "--net", "--root", *command]

    def run_in(self, pod: Pod, *command: str) -> str:
        """Returns the output of a program that runs in a pod, with its environment."""
        done = subprocess.run(
            self._enter(pod, *command), capture_output=True, text=True, env=pod.env, check=True
        )
        return done.stdout

    def _from_hub(self, program: Sequence[str]) -> int:
        enter = ["ip", "netns", "exec", self._hub]
        return subprocess.run([*enter, *program], capture_output=True, check=False).returncode

    @staticmethod
    def _repeated(command: Sequence[str], seconds: float, env: Mapping[str, str]) -> bool:
        end = time.monotonic() + seconds
        while subprocess.run(command, capture_output=True, env=env, check=False).returncode:
            if time.monotonic() > end:
                return False
            time.sleep(0.2)
        return True

    def _write_hosts(self) -> None:
        """Writes names like the kubelet and the name server: only a pod itself knows its bare name."""
        lines = ["127.0.0.1 localhost"]
        for name, each in self._pods.items():
            short = f"{name}.{self._services[name]}"
            lines.append(f"{each.address} {short}.default.svc.cluster.local {short}")
        for name, each in self._pods.items():
            own = [
                f"{line} {name}" if line.startswith(f"{each.address} ") else line for line in lines
            ]
            # Overwritten in place, because this file is mounted.
            (each.folder / "hosts").write_text("\n".join([*own, ""]))

    def _mounts(
        self, pod: Pod, spec: Mapping[str, Any], container: Mapping[str, Any], user: int
    ) -> str:
        lines = []
        volumes = {each["name"]: each for each in spec.get("volumes", ())}
        # Outer folders first: a volume at /tmp would hide mounts below it.
        for mount in sorted(container["volumeMounts"], key=lambda each: str(each["mountPath"])):
            source = self._volume(pod, volumes.get(mount["name"], {"name": mount["name"]}), user)
            path = mount["mountPath"]
            lines += _bind(source, path, read_only=mount.get("readOnly", False))
            if path == "/tmp":
                for needed in _IMAGE_FOLDERS:
                    if needed.is_relative_to(path):
                        lines += _bind(needed, str(needed), read_only=True)
        return "\n".join([*lines, ""])

    def _environment(
        self, container: Mapping[str, Any], fields: Mapping[str, str]
    ) -> dict[str, str]:
        found = {}
        for each in container.get("env", ()):
            source = each.get("valueFrom", {})
            if "secretKeyRef" in source:
                secret = source["secretKeyRef"]
                found[each["name"]] = self._maps["secret"][secret["name"]][secret["key"]]
            else:
                found[each["name"]] = (
                    each["value"] if "value" in each else fields[source["fieldRef"]["fieldPath"]]
                )
        return found

    def _volume(self, pod: Pod, volume: Mapping[str, Any], user: int) -> Path:
        if "persistentVolumeClaim" in volume:
            return self.folder / "claims" / volume["persistentVolumeClaim"]["claimName"]
        folder = pod.folder / "volumes" / volume["name"]
        for kind, key in (("configMap", "name"), ("secret", "secretName")):
            if kind in volume:
                folder.mkdir(parents=True)
                texts = self._maps[kind][volume[kind][key]]
                # Without items, a volume contains all keys.
                listed = volume[kind].get("items") or [
                    {"key": each, "path": each} for each in texts
                ]
                for each in listed:
                    (folder / each["path"]).write_text(texts[each["key"]])
                return folder
        if "emptyDir" not in volume:
            # A claim of a StatefulSet: the next pod of this name gets it too.
            folder = self.folder / "claims" / f"{volume['name']}-{pod.name}"
        folder.mkdir(parents=True, exist_ok=True)
        os.chown(folder, user, user)
        return folder


_numbers = itertools.count()

# Contents of the image: our programs and modules, where they are on this machine.
_IMAGE = {
    "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
    "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
    "PYTHONDONTWRITEBYTECODE": "1",
}
_IMAGE_FOLDERS = sorted(
    {
        ROOT,
        Path(sys.prefix),
        *(Path(each) for each in _IMAGE["PYTHONPATH"].split(os.pathsep) if each),
    }
)


@cache
def _may_run(user: int) -> bool:
    """Returns whether a user without root's capabilities can read what this Python needs."""
    become = ["setpriv", "--reuid", str(user), "--regid", str(user), "--clear-groups"]
    become += ["--inh-caps=-all", "--bounding-set=-all"]
    # With a shell in between, because setpriv looks up its program with root's capabilities.
    program = [*become, "sh", "-c", 'exec "$0" -c "import sparring"', sys.executable]
    return subprocess.run(program, capture_output=True, check=False).returncode == 0


def _bind(source: Path, path: str, *, read_only: bool) -> list[str]:
    at = f'"$root{path}"'
    lines = [f"mkdir -p {at}", f'mount --bind "{source}" {at}']
    return [*lines, f"mount -o remount,ro,bind {at}"] if read_only else lines
