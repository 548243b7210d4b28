"""The manifests against what is published: Kubernetes' schemas, JobSet's models, the pages on MPIJob and Kueue."""

import importlib
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import pytest
import yaml

from tests.deploy.kubernetes.manifests import BASE, ELASTIC, FOLDER, KUEUE, MPIJOB, Document, render

pytestmark = pytest.mark.nightly

# The oldest in which podFailurePolicy is stable, one between, and the newest that kubernetes-validate has.
VERSIONS = ("1.31", "1.34", "1.37")
PACKAGES = ("kubernetes_validate", "kubeflow_trainer_api")
MISSING = [name for name in PACKAGES if find_spec(name) is None]
needs_schemas = pytest.mark.skipif(bool(MISSING), reason=f"{', '.join(MISSING)} not installed: pip install '.[deploy]'")

_SDK = "https://github.com/kubeflow/mpi-operator/blob/master/sdk/python/v2beta1/docs"
_SPEC, _REPLICAS, _POLICY = (f"{_SDK}/V2beta1{page}.md" for page in ("MPIJobSpec", "ReplicaSpec", "RunPolicy"))
_TYPES = "https://github.com/kubeflow/mpi-operator/blob/master/pkg/apis/kubeflow/v2beta1/types.go"


def one_of(*values: str) -> Callable[[object], bool]:
    """A value must be one of these."""
    return values.__contains__


def is_number(value: object) -> bool:
    """A whole number that is not negative."""
    return type(value) is int and value >= 0


def is_path(value: object) -> bool:
    """A path from the root."""
    return str(value).startswith("/")


# Each field of an MPIJob that a manifest may have, what its value may be, and the page that says so.
MPIJOB_FIELDS: dict[str, tuple[Callable[[object], bool], str]] = {
    "slotsPerWorker": (is_number, _SPEC),
    "launcherCreationPolicy": (one_of("AtStartup", "WaitForWorkersReady"), _SPEC),
    "sshAuthMountPath": (is_path, _SPEC),
    "runPolicy.cleanPodPolicy": (one_of("All", "Running", "None"), _TYPES),
    "runPolicy.backoffLimit": (is_number, _POLICY),
    "mpiReplicaSpecs.Launcher.replicas": ((1).__eq__, _REPLICAS),
    "mpiReplicaSpecs.Launcher.restartPolicy": (one_of("Always", "OnFailure", "Never", "ExitCode"), _REPLICAS),
    "mpiReplicaSpecs.Worker.replicas": (is_number, _REPLICAS),
    "mpiReplicaSpecs.Worker.restartPolicy": (one_of("Always", "OnFailure", "Never", "ExitCode"), _REPLICAS),
}
# What Kueue reads, and from where in which kinds.
KUEUE_LABELS = {
    "kueue.x-k8s.io/queue-name": {
        "Job": "https://kueue.sigs.k8s.io/docs/tasks/run/jobs/",
        "JobSet": "https://kueue.sigs.k8s.io/docs/tasks/run/jobsets/",
        "MPIJob": "https://kueue.sigs.k8s.io/docs/tasks/run/kubeflow/mpijobs/",
    }
}


def list_documents() -> list[Document]:
    """All documents that are applied."""
    folders = [document for folder in (BASE, ELASTIC, KUEUE, MPIJOB) for document in render(folder)]
    return [*folders, *(yaml.safe_load(path.read_text(encoding="utf-8")) for path in FOLDER.glob("*.yaml"))]


def list_jobs(document: Document) -> Iterator[Document]:
    """A document of Kubernetes itself; of the others the Jobs, or the pods, that are made from it."""
    spec = document["spec"]
    match document["kind"]:
        case "JobSet":
            for part in spec["replicatedJobs"]:
                name = {"name": part["name"]}
                yield {"apiVersion": "batch/v1", "kind": "Job", "metadata": name, "spec": part["template"]["spec"]}
        case "MPIJob":
            for name, part in spec["mpiReplicaSpecs"].items():
                yield {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name.lower()}, **part["template"]}
        case _:
            yield document


def list_fields(spec: Document, path: str = "") -> Iterator[tuple[str, Any]]:
    """The fields of an MPIJob with their values, without the pods' templates."""
    for key, value in spec.items():
        if isinstance(value, dict) and key != "template":
            yield from list_fields(value, f"{path}{key}.")
        elif key != "template":
            yield path + key, value


def check_mpijob(document: Document) -> list[str]:
    """The fields that no page knows, or that have a value that none does."""
    assert document["apiVersion"] == "kubeflow.org/v2beta1"
    fields = list_fields(document["spec"])
    return [name for name, value in fields if name not in MPIJOB_FIELDS or not MPIJOB_FIELDS[name][0](value)]


@needs_schemas
@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_takes_each_document(version: str) -> None:
    validate = importlib.import_module("kubernetes_validate").validate
    documents = [job for document in list_documents() for job in list_jobs(document)]
    assert {document["kind"] for document in documents} >= {"Job", "Pod", "Service", "NetworkPolicy"}
    for document in documents:
        assert validate(document, version, strict=True) == version, document["metadata"]


@needs_schemas
def test_a_field_that_kubernetes_does_not_know_is_found() -> None:
    package = importlib.import_module("kubernetes_validate")
    (job,) = (document for document in render(BASE) if document["kind"] == "Job")
    job["spec"]["podFailurePolicies"] = job["spec"].pop("podFailurePolicy")
    with pytest.raises(package.ValidationError, match="podFailurePolicies"):
        package.validate(job, VERSIONS[0], strict=True)


@needs_schemas
def test_jobset_takes_the_elastic_job_and_loses_nothing_of_it() -> None:
    """The models of JobSet drop fields that they do not know."""
    name = "kubeflow_trainer_api.models.jobset_v1alpha2_job_set"
    model = importlib.import_module(name).JobsetV1alpha2JobSet
    (jobset,) = (document for document in render(ELASTIC) if document["kind"] == "JobSet")
    assert model.from_dict(jobset).to_dict() == jobset
    jobset["spec"]["successPolicies"] = jobset["spec"].pop("successPolicy")
    assert model.from_dict(jobset).to_dict() != jobset


def test_an_mpijob_has_only_fields_of_its_documentation() -> None:
    (mpijob,) = (document for document in render(MPIJOB) if document["kind"] == "MPIJob")
    assert check_mpijob(mpijob) == []
    mpijob["spec"]["launcherCreationPolicy"] = "WaitForWorkers"
    mpijob["spec"]["slots"] = 1
    assert check_mpijob(mpijob) == ["launcherCreationPolicy", "slots"]


def test_the_label_of_kueue_is_on_a_kind_that_kueue_reads() -> None:
    ((label, kinds),) = KUEUE_LABELS.items()
    labelled = {document["kind"] for document in render(KUEUE) if label in document["metadata"]["labels"]}
    assert labelled & kinds.keys() == {"Job"}
