"""Pods of deploy/kubernetes on the hosts of a lab: what kubelet and the Job controller do, as far as hvdrun notices."""

import os
import sys
from pathlib import Path
from typing import Any

import psutil

from hvdrun.joining.token import create_files, name_key
from tests.deploy.kubernetes.manifests import Pod, fill_words
from tests.house.sources import ROOT
from tests.lab.plan import HostPlan
from tests.system.hosts.cluster import BuildCluster, Cluster
from tests.system.launcher import Running
from tests.system.opening import open_ways

JOB = "train"
USER = 54321  # without an account
_SECRETS = "/run/secrets/hvdrun"
_READ_BY_GROUP = 0o440
_FIRST_NEW_NUMBER = 100  # of hosts that come in the place of others
# A container has processes of its own, of which the command is the first, a read-only root and its Secrets.
_ENTER = ("unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child")
_PREPARE = (
    "set -e",
    "mount -t tmpfs -o mode=755 tmpfs /mnt",
    *open_ways(Path("/mnt"), Path(sys.base_prefix).resolve(), ROOT),
    f"mkdir -p {_SECRETS}",
    f'mount --bind "$1" {_SECRETS}',
    "mount -o remount,bind,ro /",
    "shift",
    'exec "$@"',
)
_HOMELESS = ("env", "-u", "USER", "-u", "LOGNAME", "HOME=/")
_UNPRIVILEGED = (
    *("setpriv", "--reuid", str(USER), "--regid", str(USER), "--clear-groups"),
    *("--no-new-privs", "--bounding-set=-all"),
)


def evict(container: Running) -> None:
    """Do as kubelet does: SIGTERM for the first process of the container."""
    (first,) = psutil.Process(container.pid).children()
    first.terminate()


class Pods:
    """The pods of one job, each on the host of its name."""

    def __init__(self, build: BuildCluster, *names: str) -> None:
        self.cluster: Cluster = build([HostPlan(name, sshd=None) for name in names])
        self._secrets = {name: self._make_folder(name) for name in ("token", "token-and-key")}
        self._replaced = 0
        self.checkpoints = self._make_folder("checkpoints", 0o777)
        self._caches = self._make_folder("inductor", 0o777)
        made = create_files(self._secrets["token-and-key"] / "token").path
        token = self._secrets["token"] / "token"
        token.write_bytes(made.read_bytes())
        for file in (made, name_key(made), token):
            file.chmod(_READ_BY_GROUP)
            os.chown(file, 0, USER)

    def make_again(self, pod: Pod, name: str, index: int = 0) -> dict[str, Running]:
        """Do as the Job controller does: a pod of the same name, on another node, with another address."""
        self._replaced += 1
        self.cluster.lab.reboot(name, _FIRST_NEW_NUMBER + self._replaced)
        return self.start(pod, name, index)

    def start(self, pod: Pod, name: str, index: int = 0) -> dict[str, Running]:
        """Start the containers of a pod; by their names."""
        return {container["name"]: self._run(container, name, index) for container in pod.containers}

    def _run(self, container: dict[str, Any], name: str, index: int) -> Running:
        host = self.cluster[name]
        fields = {
            "status.podIP": host.network.address(),
            "metadata.labels['batch.kubernetes.io/job-name']": JOB,
            "metadata.labels['jobset.sigs.k8s.io/jobset-name']": JOB,
        }
        words = [word.replace(f".{JOB}:", ":") for word in fill_words(container, fields)]  # the lab has no domains
        words = [word.replace("/checkpoints", str(self.checkpoints)) for word in words]
        (secret,) = (
            self._secrets[mount["name"]] for mount in container["volumeMounts"] if mount["name"] in self._secrets
        )
        variables = {
            "JOB_COMPLETION_INDEX": str(index),
            "TORCHINDUCTOR_CACHE_DIR": str(self._caches),
        }
        return self.cluster.start_on(
            host,
            [*_ENTER, "sh", "-c", "\n".join(_PREPARE), "sh", str(secret), *_HOMELESS, *_UNPRIVILEGED, *words],
            environment=variables,
        )

    def _make_folder(self, name: str, mode: int = 0o755) -> Path:
        folder = self.cluster.directory / name
        folder.mkdir()
        folder.chmod(mode)
        return folder
