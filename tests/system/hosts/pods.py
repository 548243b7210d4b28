"""Pods of deploy/kubernetes on the hosts of a lab: what kubelet and the Job controller do, as far as hvdrun notices."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from hvdrun.joining.keys import make_files, name_key
from tests.deploy.kubernetes.manifests import Pod, fill_words
from tests.lab.host import Host
from tests.system.hosts.cluster import Cluster
from tests.system.launcher import Running

JOB = "train"
USER = "54321"  # without an account
_SECRETS = "/run/secrets/hvdrun"
_READ_ONLY_BY_GROUP = 0o440
# A container: its own processes, of which the command is the first, and its own view of the files.
_ENTER = ("unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child")
_PREPARE = f'mkdir -p {_SECRETS}; mount --bind "$1" {_SECRETS}; mount -o remount,bind,ro /; shift; exec "$@"'
_UNPRIVILEGED = ("setpriv", "--reuid", USER, "--regid", USER, "--clear-groups", "--no-new-privs", "--bounding-set=-all")
_HOMELESS = ("env", "-u", "USER", "-u", "LOGNAME", "HOME=/")


class Pods:
    """The pods of one job; each is the host of its name in a lab."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._token = cluster.directory / "token"
        self._both = cluster.directory / "token-and-key"
        for folder in (self._token, self._both):
            folder.mkdir()
        made = make_files(self._both / "token").path
        (self._token / "token").write_bytes(made.read_bytes())
        for file in (made, name_key(made), self._token / "token"):
            file.chmod(_READ_ONLY_BY_GROUP)
            _give(file)

    def start(self, pod: Pod, name: str, index: int) -> dict[str, Running]:
        """Start the containers of a pod; by their names."""
        return {container["name"]: self._run(self._cluster[name], container, index) for container in pod.containers}

    def _run(self, host: Host, container: dict[str, Any], index: int) -> Running:
        fields = {
            "status.podIP": host.network.address(),
            "metadata.labels['batch.kubernetes.io/job-name']": JOB,
            "metadata.labels['jobset.sigs.k8s.io/jobset-name']": JOB,
        }
        # The lab's hosts have no domain, as pods have.
        words = [word.replace(f".{JOB}:", ":") for word in fill_words(container, fields)]
        secrets = self._both if any(mount["name"] == "token-and-key" for mount in container["volumeMounts"]) else self._token
        command = [*_ENTER, "sh", "-ec", _PREPARE, "sh", str(secrets), *_HOMELESS, *_UNPRIVILEGED, *words]
        variables = {
            "JOB_COMPLETION_INDEX": str(index),
            "TORCHINDUCTOR_CACHE_DIR": str(self._cluster.directory / "inductor"),
        }
        process = host.start(command, environment=variables, directory=self._cluster.directory)
        return self._cluster.adopt(Running(process))


def _give(path: Path) -> None:
    """Let the pods' group read this."""
    import os
    os.chown(path, 0, int(USER))
