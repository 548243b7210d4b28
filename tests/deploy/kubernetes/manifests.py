"""The manifests of deploy/kubernetes as values: what `kubectl kustomize` makes of a folder, and the pods in it."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.house.sources import ROOT

Document = dict[str, Any]

FOLDER = ROOT / "deploy" / "kubernetes"
BASE, ELASTIC, KUEUE, MPIJOB = (
    FOLDER / name for name in ("base", *(f"overlays/{o}" for o in ("elastic", "kueue", "mpijob")))
)
_INERT = {"apiVersion", "kind", "configurations"}  # the last says which names a suffix reaches: here there is none


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod's template.

    name: the name of the folder, and of its part in there.
    spec: the specification of the pod.
    restarts: its restart policy, which an MPIJob has elsewhere.
    job: the specification of the Job that makes it; an MPIJob's Jobs are made by its operator.
    """

    name: str
    spec: Document
    restarts: str
    job: Document = field(default_factory=dict)

    @property
    def containers(self) -> list[Document]:
        """The containers of the pod."""
        containers: list[Document] = self.spec["containers"]
        return containers

    def find_volume(self, mount: Document) -> Document:
        """The volume behind a container's mount."""
        (volume,) = (volume for volume in self.spec["volumes"] if volume["name"] == mount["name"])
        return dict(volume)


def render(folder: Path) -> list[Document]:
    """The documents of a folder that has resources and labels; whatever else Kustomize can do is an error."""
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text(encoding="utf-8"))
    resources = kustomization.pop("resources")
    labels = [label for item in kustomization.pop("labels", []) for label in item["pairs"].items()]
    assert set(kustomization) <= _INERT, f"{folder} needs kubectl: {set(kustomization) - _INERT}"
    documents = [document for resource in resources for document in _read(folder / resource)]
    for document in documents:
        if labels:
            document["metadata"].setdefault("labels", {}).update(labels)
    return documents


def find_pods(folder: Path) -> Iterator[Pod]:
    """All pods of a folder."""
    for document in render(folder):
        spec = document.get("spec", {})
        match document["kind"]:
            case "Job":
                yield _make_pod(f"{folder.name}", spec)
            case "JobSet":
                for part in spec["replicatedJobs"]:
                    yield _make_pod(f"{folder.name}: {part['name']}", part["template"]["spec"])
            case "MPIJob":
                for name, part in spec["mpiReplicaSpecs"].items():
                    yield Pod(f"{folder.name}: {name}", part["template"]["spec"], part["restartPolicy"])


def list_words(container: Document) -> list[str]:
    """The command line of a container."""
    return [*container["command"], *container.get("args", [])]


def read_option(container: Document, option: str) -> str:
    """The word after an option of a container's command line."""
    words = list_words(container)
    return words[words.index(option) + 1]


def fill_words(container: Document, fields: Mapping[str, str]) -> list[str]:
    """The command line as kubelet starts it: `$(NAME)` is a variable of the container, which has a field of the pod."""
    variables = {one["name"]: fields[one["valueFrom"]["fieldRef"]["fieldPath"]] for one in container.get("env", [])}
    return [re.sub(r"\$\((\w+)\)", lambda found: variables[found[1]], word) for word in list_words(container)]


def _make_pod(name: str, job: Document) -> Pod:
    spec = job["template"]["spec"]
    return Pod(name, spec, spec["restartPolicy"], job)


def _read(path: Path) -> list[Document]:
    if path.is_dir():
        return render(path)
    return [document for document in yaml.safe_load_all(path.read_text(encoding="utf-8")) if document]
