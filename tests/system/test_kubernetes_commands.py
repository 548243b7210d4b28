"""What the containers of deploy/kubernetes/base run, run here: two pods on this machine."""

import socket
import subprocess
from pathlib import Path
from typing import Any

from hvdrun.joining.keys import make_files
from tests.deploy.kubernetes.manifests import BASE, fill_words, find_pods
from tests.system.launcher import LIMIT_SECONDS, Launcher, Running

NAME = "train"
PODS = 2
TRAINING = """
import os
print("rank", os.environ["HOROVOD_RANK"], "of", os.environ["HOROVOD_SIZE"], "on", os.environ["HOROVOD_HOSTNAME"])
"""


def start(hvdrun: Launcher, container: dict[str, Any], index: int, replaced: dict[str, str]) -> Running:
    """Start a container of the pod with this index, as kubelet does."""
    fields = {"status.podIP": "127.0.0.1", "metadata.labels['batch.kubernetes.io/job-name']": NAME}
    words = fill_words(container, fields)
    for old, new in replaced.items():
        words = [word.replace(old, new) for word in words]
    if container["name"] == "agent":  # the pods have names of their own; here all is one host
        words += ["--name", f"{NAME}-{index}"]
    return hvdrun.start_command(words, environment={"JOB_COMPLETION_INDEX": str(index)})


def test_the_containers_of_the_base_run_the_training_on_each_pod(hvdrun: Launcher, tmp_path: Path) -> None:
    hvdrun.write("train.py", TRAINING)
    make_files(tmp_path / "token")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    replaced = {f"{NAME}-0.{NAME}": "127.0.0.1", "29400": str(port), "/run/secrets/hvdrun/token": str(tmp_path / "token")}
    (pod,) = find_pods(BASE)
    containers = {
        f"{container['name']} {index}": start(hvdrun, container, index, replaced)
        for index in range(PODS)
        for container in pod.containers
    }
    finished = {name: running.wait(LIMIT_SECONDS) for name, running in containers.items()}
    assert {name: one.returncode for name, one in finished.items()} == dict.fromkeys(containers, 0), finished
    assert sorted(finished["launcher 0"].stdout.splitlines()) == [
        f"[{rank}@{NAME}-{rank}] rank {rank} of {PODS} on {NAME}-{rank}" for rank in range(PODS)
    ]
