"""What holds for every pod of deploy/kubernetes, and for the objects around them."""

import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from hvdrun.allocation import found as hostfiles
from hvdrun.cli.program import read_spec
from hvdrun.errors import UsageError
from hvdrun.options import programs
from hvdrun.options.kinds import parse_duration
from tests.deploy.kubernetes.manifests import (
    BASE,
    ELASTIC,
    FOLDER,
    KUEUE,
    MPIJOB,
    Document,
    Pod,
    fill_words,
    find_pods,
    read_option,
    render,
)

ALL = (BASE, ELASTIC, KUEUE, MPIJOB)
README = FOLDER.parent / "README.md"
PODS = [pod for folder in (BASE, ELASTIC, MPIJOB) for pod in find_pods(folder)]
TOKEN, KEY = "token", "token.key"
WORTH_STARTING_AGAIN = [75, 143]
FAILURES = [
    {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
    {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [2, 125, 126, 127]}},
    {"action": "Ignore", "onExitCodes": {"operator": "In", "values": WORTH_STARTING_AGAIN}},
]
DROPPED: list[Document] = [{"drop": ["ALL"]}, {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]}]
RULES: dict[str, Callable[[Pod], bool]] = {
    "a container is not started again within its pod": lambda pod: pod.restarts == "Never",
    "any user but root may run it": lambda pod: pod.spec["securityContext"]["runAsNonRoot"] is True,
    "its group may read the token": lambda pod: pod.spec["securityContext"]["fsGroup"] > 0,
    "seccomp": lambda pod: pod.spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"},
    "no token of Kubernetes": lambda pod: pod.spec["automountServiceAccountToken"] is False,
    "no privileges": lambda pod: all(
        context["allowPrivilegeEscalation"] is False and context["capabilities"] in DROPPED
        for context in list_contexts(pod)
    ),
    "a read-only root": lambda pod: all(context["readOnlyRootFilesystem"] for context in list_contexts(pod)),
    "room to write": lambda pod: all(
        {"emptyDir": {}}.items() <= find_mounted(pod, container, "/tmp").items()  # noqa: S108 - the container's own
        for container in pod.containers
    ),
    "shared memory where workers are": lambda pod: all(
        find_mounted(pod, container, "/dev/shm")["emptyDir"]["medium"] == "Memory"  # noqa: S108 - the container's own
        for container in pod.containers
        if container["name"] != "launcher"
    ),
    "it gets what it may use": lambda pod: all(
        container["resources"]["requests"] == container["resources"]["limits"] != {} for container in pod.containers
    ),
}


def list_contexts(pod: Pod) -> list[Document]:
    """The security contexts of a pod's containers."""
    return [container["securityContext"] for container in pod.containers]


def find_mounted(pod: Pod, container: Document, path: str) -> Document:
    """The volume that a container has at this path."""
    (mount,) = (mount for mount in container["volumeMounts"] if mount["mountPath"] == path)
    return pod.find_volume(mount)


def list_secrets(pod: Pod, container: Document) -> set[str]:
    """The files of the token's Secret that a container has."""
    volumes = (pod.find_volume(mount) for mount in container["volumeMounts"])
    secrets = [volume["secret"] for volume in volumes if "secret" in volume]
    return {name for secret in secrets for name in ([item["path"] for item in secret.get("items", [])] or (TOKEN, KEY))}


def find_kind(folder: Path, kind: str) -> list[Document]:
    """The documents of this kind."""
    return [document for document in render(folder) if document["kind"] == kind]


def run_kubectl(folder: Path) -> list[Document]:
    """The documents that kubectl renders."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    run = subprocess.run(["kubectl", "kustomize", folder], capture_output=True, check=True)
    return list(yaml.safe_load_all(run.stdout))


def sort(documents: list[Document]) -> list[Document]:
    """The documents in an order of their own: kubectl has another."""
    return sorted(documents, key=lambda document: str(document["kind"]))


def rename(value: Any, names: Mapping[str, str], image: str) -> Any:
    """What stands in a manifest when its objects have other names and its containers another image."""
    match value:
        case dict():
            return {key: image if key == "image" else rename(one, names, image) for key, one in value.items()}
        case list():
            return [rename(one, names, image) for one in value]
        case str():
            return names.get(value, value)
        case _:
            return value


def list_launchers() -> Iterator[tuple[Pod, Document]]:
    """The containers that run the launcher, with their pods."""
    return ((pod, container) for pod in PODS for container in pod.containers if container["name"] == "launcher")


def list_commands() -> list[list[str]]:
    """The command lines of hvdrun in the manifests, and on the whole page that explains deploy/; without `hvdrun`."""
    fields = {
        "status.podIP": "10.0.0.1",
        "metadata.labels['batch.kubernetes.io/job-name']": "train",
        "metadata.labels['jobset.sigs.k8s.io/jobset-name']": "train",
    }
    containers = (fill_words(container, fields) for pod in PODS for container in pod.containers)
    typed = (shlex.split(line, comments=True) for line in find_lines(README.read_text(encoding="utf-8")))
    lines = [*containers, *typed]
    return [line[line.index("hvdrun") + 1 :] for line in lines if "hvdrun" in line]


def find_lines(page: str) -> list[str]:
    """What a reader of a page has to type: after a prompt, or in a sentence."""
    lines = re.findall(r"(?:^ *\$ |`)((?:hvdrun|bsub|docker run) [^`\n]+)", page, re.MULTILINE)
    return [line for line in lines if not line.endswith("...")]


def read_command(words: list[str]) -> object:
    """Read a command line as hvdrun does."""
    match words:
        case ["agent", *rest]:
            return programs.read_agent(programs.AGENT.parse(rest))
        case ["token", *rest]:
            return programs.read_token(programs.TOKEN.parse(rest))
        case _:
            return read_spec(words)


@pytest.fixture
def mpijob(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the launcher has learnt of its job from the MPI Operator."""
    (tmp_path / "hostfile").write_text("train-worker-0.train-worker.default.svc slots=8\n", encoding="utf-8")
    monkeypatch.setenv("K_MPI_JOB_ROLE", "launcher")
    monkeypatch.setattr(hostfiles, "MPI_FOLDER", tmp_path)


@pytest.mark.usefixtures("mpijob")
def test_hvdrun_understands_every_command() -> None:
    commands = list_commands()
    starts = ["--agent-prefix", "--grace", "--rsh", "-np", "agent", "python", "token"]
    assert sorted({words[0] for words in commands}) == starts
    for words in commands:
        read_command(words)
        option = next((place for place, word in enumerate(words) if word.startswith("--")), None)
        if option is not None:
            with pytest.raises(UsageError):
                read_command([*words[:option], f"{words[option]}s", *words[option + 1 :]])


@pytest.mark.parametrize("rule", RULES)
def test_every_pod_keeps_the_rule(rule: str) -> None:
    assert [pod.name for pod in PODS if not RULES[rule](pod)] == []


def test_each_manifest_says_what_a_failed_pod_means_where_kubernetes_has_a_field_for_it() -> None:
    jobs = [pod for pod in PODS if pod.job]
    assert [pod.name for pod in jobs] == ["base", "elastic: coordinator", "elastic: agent"]
    assert [pod.name for pod in jobs if pod.job["podFailurePolicy"] != {"rules": FAILURES}] == []


def test_kubernetes_waits_longer_than_the_launcher_for_its_workers() -> None:
    graces = {
        pod.name: (parse_duration(read_option(container, "--grace")), pod.spec["terminationGracePeriodSeconds"])
        for pod, container in list_launchers()
    }
    assert [name for name, (grace, limit) in graces.items() if not grace < limit] == []
    (agents,) = (pod for pod in PODS if pod.name == "elastic: agent")
    assert agents.spec["terminationGracePeriodSeconds"] > graces["elastic: coordinator"][0]


def test_only_the_launcher_has_the_key_and_both_may_read_theirs() -> None:
    held = {f"{pod.name}: {one['name']}": list_secrets(pod, one) for pod in PODS for one in pod.containers}
    assert {name for name, files in held.items() if KEY in files} == {
        "base: launcher",
        "elastic: coordinator: launcher",
    }
    assert {name for name, files in held.items() if files == {TOKEN}} == {"base: agent", "elastic: agent: agent"}
    secrets = [volume["secret"] for pod in PODS for volume in pod.spec["volumes"] if "secret" in volume]
    assert {secret["defaultMode"] for secret in secrets} == {0o440}


@pytest.mark.parametrize("folder", [BASE, ELASTIC], ids=lambda folder: folder.name)
def test_the_job_has_as_many_pods_as_workers(folder: Path) -> None:
    parts = {container["name"]: (pod.job, container) for pod in find_pods(folder) for container in pod.containers}
    _, launcher = parts["launcher"]
    job, _ = parts["agent"]
    assert job["completions"] == job["parallelism"] == int(read_option(launcher, "-np"))


def test_each_run_of_the_elastic_job_has_checkpoints_of_its_own() -> None:
    """A run that is made again under its name resumes; another one begins anew, though both use one volume."""
    (launcher,) = (one for pod, one in list_launchers() if pod.name == "elastic: coordinator")
    fields = {"status.podIP": "10.0.0.1", "metadata.labels['jobset.sigs.k8s.io/jobset-name']": "train-1"}
    assert "/checkpoints/train-1" in fill_words(launcher, fields)


def test_the_budget_is_for_the_coordinator_alone() -> None:
    (budget,) = (document for folder in ALL for document in find_kind(folder, "PodDisruptionBudget"))
    (jobset,) = find_kind(ELASTIC, "JobSet")
    coordinator, _ = jobset["spec"]["replicatedJobs"]
    assert budget["spec"] == {
        "minAvailable": 1,  # of pods that no Deployment or the like has made, nothing else can be said
        "selector": {
            "matchLabels": {
                "jobset.sigs.k8s.io/jobset-name": jobset["metadata"]["name"],
                "jobset.sigs.k8s.io/replicatedjob-name": coordinator["name"],
            }
        },
    }


@pytest.mark.parametrize(
    ("folder", "label"),
    [
        (BASE, "batch.kubernetes.io/job-name"),
        (ELASTIC, "jobset.sigs.k8s.io/jobset-name"),
        (MPIJOB, "training.kubeflow.org/job-name"),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_only_pods_of_the_job_reach_its_pods(folder: Path, label: str) -> None:
    (policy,) = find_kind(folder, "NetworkPolicy")
    pods = {"podSelector": {"matchLabels": {label: "train"}}}
    assert policy["spec"] == {**pods, "policyTypes": ["Ingress"], "ingress": [{"from": [pods]}]}


def test_agents_find_the_launcher_before_its_pod_is_ready() -> None:
    (service,) = find_kind(BASE, "Service")
    (pod,) = find_pods(BASE)
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": "train"}
    assert pod.spec["subdomain"] == service["metadata"]["name"]


def test_kueue_is_a_label_more_than_the_base() -> None:
    plain = render(BASE)
    for document in plain:
        document["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "user-queue"}
    assert render(KUEUE) == plain


@pytest.mark.parametrize("folder", ALL, ids=lambda folder: folder.name)
def test_kubectl_renders_the_same_documents_as_our_renderer(folder: Path) -> None:
    assert sort(run_kubectl(folder)) == sort(render(folder))


@pytest.mark.parametrize("folder", ALL, ids=lambda folder: folder.name)
def test_a_run_of_its_own_has_its_name_and_its_image_everywhere(folder: Path, tmp_path: Path) -> None:
    """As the README does it, for any of the folders."""
    shutil.copytree(FOLDER, tmp_path / "kubernetes")
    mine = tmp_path / "kubernetes" / "mine" / "kustomization.yaml"
    mine.parent.mkdir()
    (kustomization,) = re.findall(r"^```yaml\n(.*?)^```$", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    mine.write_text(kustomization.replace("../base", f"../{folder.relative_to(FOLDER)}"))
    run = yaml.safe_load(kustomization)
    (image,) = run["images"]
    expected = rename(
        render(folder),
        {name: name + run["nameSuffix"] for name in ("train", "train-coordinator")},
        f"{image['newName']}:{image['newTag']}",
    )
    assert sort(run_kubectl(mine.parent)) == sort(expected)
