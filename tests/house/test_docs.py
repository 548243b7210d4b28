"""README and docs: short enough, no dead link, what is generated is current, and hvdrun takes each command line."""

import ast
import importlib
import inspect
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

import hvdrun.cluster.horovod
from hvdrun.cli.program import read_spec
from hvdrun.options.horovodrun import BY_FLAG as OF_HOROVODRUN
from hvdrun.options.programs import AGENT, DOCTOR, JOB_PROGRAMS, STACKS, TOKEN
from hvdrun.options.table import OPTIONS
from rendezvous.core.lifecycle import PHASES, WORKER_STATES, Phase, Transitions, WorkerState
from tests.documentation import DEPLOY, PAGES, README, find_blocks, find_commands, find_reason, find_shell_lines, read
from tests.house.sources import ROOT, read_sources

TWO_SCREENS = 150  # lines
FROM_HOROVOD = ROOT / "docs" / "moving" / "from-horovod.md"
FROM_TORCHRUN = ROOT / "docs" / "moving" / "from-torchrun.md"
# Options of scripts and of other programs that the text names; those of torchrun are looked up.
OTHERS_OPTIONS = {
    *(
        "-W",
        "-s",
        "--epochs",
        "--force",
        "--install",
        "--kill-at",
        "--no-deps",
        "--nv",
        "--path",
        "--pdb",
        "--pid",
        "--requeue",
        "--runs",
        "--scope",
        "--trace",
        "--uninstall",
        "--user",
    ),
    *("-W", "-s", "--extra-index-url", "--nodes", "--ntasks-per-node", "--signal", "--write"),
}
# What Horovod 0.28.1 reads when it runs and when it is built, without their common beginning.
_HOROVODS_NAMES = """
RANK SIZE LOCAL_RANK LOCAL_SIZE CROSS_RANK CROSS_SIZE HOSTNAME ELASTIC START_TIMEOUT ELASTIC_TIMEOUT
STALL_CHECK_DISABLE STALL_CHECK_TIME_SECONDS STALL_SHUTDOWN_TIME_SECONDS DYNAMIC_PROCESS_SETS
TIMELINE TIMELINE_MARK_CYCLES DISABLE_NVTX_RANGES FUSION_THRESHOLD CYCLE_TIME CACHE_CAPACITY BATCH_D2D_MEMCOPIES
ENABLE_ASYNC_COMPLETION DISABLE_GROUP_FUSION AUTOTUNE AUTOTUNE_LOG AUTOTUNE_WARMUP_SAMPLES
AUTOTUNE_STEPS_PER_SAMPLE AUTOTUNE_BAYES_OPT_MAX_SAMPLES AUTOTUNE_GAUSSIAN_PROCESS_NOISE HIERARCHICAL_ALLREDUCE
HIERARCHICAL_ALLGATHER TORUS_ALLREDUCE NUM_NCCL_STREAMS CONTROLLER CPU_OPERATIONS GLOO_IFACE GLOO_TIMEOUT_SECONDS
GLOO_RENDEZVOUS_ADDR GLOO_RENDEZVOUS_PORT MPI_THREADS_DISABLE ADASUM_MPI_CHUNK_SIZE CCL_CACHE THREAD_AFFINITY
LOG_LEVEL LOG_HIDE_TIME ENABLE_XLA_OPS SPARK_START_TIMEOUT SPARK_PYTHONPATH SPARK_WORK_DIR
SPARK_USE_LOCAL_RANK_GPU_INDEX
WITH_GLOO WITHOUT_GLOO WITH_MPI WITHOUT_MPI WITH_PYTORCH WITHOUT_PYTORCH WITH_MXNET WITHOUT_MXNET WITH_TENSORFLOW
WITHOUT_TENSORFLOW WITH_NVTX WITHOUT_NVTX GPU GPU_OPERATIONS GPU_ALLREDUCE GPU_ALLGATHER GPU_BROADCAST GPU_ALLTOALL
GPU_REDUCESCATTER ALLOW_MIXED_GPU_IMPL CUDA_HOME BUILD_CUDA_CC_LIST ROCM_HOME NCCL_HOME NCCL_INCLUDE NCCL_LIB
NCCL_LINK NVTX_INCLUDE BUILD_ARCH_FLAGS CMAKE DEBUG SKIP_COMPILE
"""
HOROVODS_VARIABLES = {f"HOROVOD_{name}" for name in _HOROVODS_NAMES.split()}
# By these an agent gives its workers their numbers; no user sets them.
INTERNAL_VARIABLES = {
    *(
        "HVD_ADDRESS",
        "HVD_INCARNATION",
        "HVD_JOB",
        "HVD_LATE",
        "HVD_LEASE",
        "HVD_MEMBER",
        "HVD_SERVER_TIMEOUT",
        "HVD_SLOT",
        "HVD_SNAPSHOT_FD",
        "HVD_SOCKET",
        "HVD_VERSION",
    ),
    "HVD_START_TIMEOUT",
}
# Errors that reach a user derive from these.
BASES = {
    "HvdrunError",
    "LaunchError",
    "UsageError",
    "TransportError",
    "SshError",
    "RendezvousError",
    "JournalError",
    "HorovodInternalError",
    "InitializationError",
    "WrongArgumentError",
}
MAP = ROOT / "docs" / "contributing" / "architecture.md"
_FILES = {
    "hosts.txt": "server1 slots=4\nserver2 slots=4\n",
    "job.yaml": "np: 2\ncommand: python train.py\n",
    "hosts.lsf": "localhost\nlocalhost\n",
    "train.py": "",
}


def read_prose(page: Path) -> str:
    """A page without its blocks of code."""
    return re.sub(r"^ *```.*?^ *```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def find_links(page: Path) -> Iterator[tuple[Path, str]]:
    """The files that a page links to, itself included, and the places in them; a web page is none."""
    for target in re.findall(r"\]\(([^):]+)\)", read_prose(page)):
        path, _, place = target.partition("#")
        yield page.parent / path if path else page, place


def list_places(page: Path) -> set[str]:
    """The names that links give to a page's headings, with none for the whole page."""
    headings = re.findall(r"^#+ (.*)$", read_prose(page), re.MULTILINE)
    return {"", *(re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings)}


@pytest.mark.parametrize("page", [README, MAP], ids=lambda page: page.name)
def test_readme_and_map_fit_on_two_screens(page: Path) -> None:
    assert len(page.read_text(encoding="utf-8").splitlines()) <= TWO_SCREENS


@pytest.mark.parametrize("page", [*PAGES, DEPLOY], ids=lambda page: str(page.relative_to(ROOT)))
def test_no_link_is_dead(page: Path) -> None:
    links = list(find_links(page))
    assert [str(target) for target, _ in links if not target.exists()] == []
    pages = [(target, place) for target, place in links if target.suffix == ".md"]
    assert [f"{target}#{place}" for target, place in pages if place not in list_places(target)] == []


@pytest.mark.parametrize("page", [MAP, MAP.parent / "files.md", ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_every_file_that_the_map_names_exists(page: Path) -> None:
    named = re.findall(r"`([\w.-]+(?:/[\w.-]+)+)/?`", page.read_text(encoding="utf-8"))
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_the_messages_of_troubleshooting_are_those_of_the_error_classes() -> None:
    run = subprocess.run([sys.executable, "docs/errors.py", "--check"], cwd=ROOT, check=False, timeout=60)
    assert run.returncode == 0, "run python docs/errors.py"


def test_the_signals_of_the_page_of_exit_codes_are_those_of_the_table() -> None:
    run = subprocess.run([sys.executable, "docs/signals.py", "--check"], cwd=ROOT, check=False, timeout=60)
    assert run.returncode == 0, "run python docs/signals.py"


def test_the_first_causes_of_their_page_are_those_of_the_table() -> None:
    run = subprocess.run([sys.executable, "docs/causes.py", "--check"], cwd=ROOT, check=False, timeout=60)
    assert run.returncode == 0, "run python docs/causes.py"


def test_a_pipe_in_a_message_divides_no_cell_of_the_table() -> None:
    escape_pipes = runpy.run_path(str(ROOT / "docs" / "errors.py"))["escape_pipes"]
    assert escape_pipes("`a | b <c>` or d | `e`") == "<code>a &#124; b &lt;c&gt;</code> or d &#124; `e`"


@pytest.mark.parametrize(
    ("sentence", "message"),
    [
        ("f\"{size} slot{'' if size == 1 else 's'} at {self.place}\"", "SIZE slots at PLACE"),
        ('f"was not added{remedy}: {type(error).__name__}: {error}"', "was not added, a bug: TYPE: ERROR"),
        ('f"it expired at {token.describe_expiry()}{detail}"', "it expired at TIME"),
        ('f"the ranks are 0 to {size - 1}"', "the ranks are 0 to SIZE - 1"),
        ('f"{some(hosts)} did not {task}"', "HOSTS did not DO SOMETHING"),
    ],
)
def test_a_row_of_troubleshooting_reads_like_its_message(sentence: str, message: str) -> None:
    source = f"""
class AnError(LaunchError):
    '''It failed.

    Cause: One.
    Remedy: Two.
    '''

    def __init__(self):
        remedy = "" if isinstance(error, OSError) else ", a bug"
        super().__init__({sentence})
"""
    (node,) = ast.parse(source).body
    explain = runpy.run_path(str(ROOT / "docs" / "errors.py"))["explain"]
    assert explain(node) == [(f"`{message}`", "One.", "Two.")]


def test_every_error_for_users_has_a_cause_and_a_remedy() -> None:
    unexplained = [
        f"{path}:{node.name}"
        for package in ("hvdrun", "rendezvous", "worker_runtime")
        for path, source in read_sources(package)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ClassDef)
        and node.name not in BASES
        and BASES & {base.id for base in node.bases if isinstance(base, ast.Name)}
        and not {"Cause:", "Remedy:"} <= set((ast.get_docstring(node) or "").split())
    ]
    assert unexplained == []


def read_documentation() -> str:
    """README and docs in one."""
    return read(page for page in PAGES if page.name not in {"CHANGELOG.md", "CONTRIBUTING.md"})


def test_every_option_in_the_text_exists_and_every_one_that_exists_is_in_the_text() -> None:
    programs = (AGENT, DOCTOR, STACKS, TOKEN, *JOB_PROGRAMS.values())
    options = (*OPTIONS, *(option for program in programs for option in program.options))
    own = {flag for option in options for flag in option.flags}
    named = find_options(read_documentation())
    assert sorted(named - own - OF_HOROVODRUN.keys() - OTHERS_OPTIONS - set(list_options_of_torchrun())) == []
    assert sorted(own - named) == []


def find_options(text: str) -> set[str]:
    """The options that a text names: with two dashes anywhere, with one at the beginning of code in a sentence."""
    long = re.findall(r"(?<![\w/-])(--[a-z][a-z0-9-]*[a-z0-9])(?![\w*-])", text)
    return {*long, *re.findall(r"`(-[A-Za-z][\w-]*)", text)}


def list_options_of_torchrun() -> list[str]:
    """Each once; torchrun takes the words of an option with `-` and with `_`."""
    actions = pytest.importorskip("torch.distributed.run").get_args_parser()._actions
    return [flag for action in actions for flag in action.option_strings if "_" not in flag]


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(OF_HOROVODRUN, id="options of horovodrun"),
        pytest.param(HOROVODS_VARIABLES, id="variables of Horovod"),
        pytest.param(inspect.signature(hvdrun.cluster.horovod.run).parameters, id="horovod.run"),
    ],
)
def test_the_page_about_horovod_leaves_nothing_out(names: Iterable[str]) -> None:
    assert find_missing(FROM_HOROVOD, names) == []


def test_the_page_about_horovod_has_each_variable_in_one_row() -> None:
    rows = [line for line in FROM_HOROVOD.read_text(encoding="utf-8").splitlines() if line.startswith("| `HOROVOD_")]
    names = re.findall(r"`(HOROVOD_\w+)`", "\n".join(row.split("|")[1] for row in rows))
    assert sorted(name for name in set(names) if names.count(name) > 1) == []


def test_the_page_about_torchrun_leaves_no_option_out() -> None:
    assert find_missing(FROM_TORCHRUN, list_options_of_torchrun()) == []


def find_missing(page: Path, names: Iterable[str]) -> list[str]:
    """The names that do not stand on a page as code."""
    text = page.read_text(encoding="utf-8")
    return sorted(name for name in names if f"`{name}`" not in text)


@pytest.mark.parametrize("framework", ["torch", "mxnet"])
def test_every_name_of_hvd_stands_on_the_pages_of_the_api(framework: str) -> None:
    pytest.importorskip(framework)
    names = importlib.import_module(f"worker_runtime.{framework}").__all__
    pages = [ROOT / "docs" / "reference" / f"api-{name}.md" for name in dict.fromkeys([framework, "torch", "elastic"])]
    words = set(re.findall(r"\w+", read(pages)))
    assert sorted(set(names) - words) == []


def test_every_variable_in_the_text_exists_and_every_one_for_users_is_in_the_text() -> None:
    pattern = r"\b((?:HVD|HVDRUN|HOROVOD)_[A-Z0-9_]*[A-Z0-9])"
    named = set(re.findall(rf"{pattern}\b", read_documentation()))
    sources = (source for package in ("hvdrun", "rendezvous", "worker_runtime") for _, source in read_sources(package))
    known = set(re.findall(rf"[\"'\$]{pattern}[\"']", "\n".join(sources)))
    assert sorted(named - known - HOROVODS_VARIABLES) == []
    assert sorted(known - named - INTERNAL_VARIABLES) == []


@pytest.mark.parametrize("table", [PHASES, WORKER_STATES], ids=["phases", "workers"])
def test_the_map_draws_the_tables_of_the_core(table: Transitions[Phase] | Transitions[WorkerState]) -> None:
    width = max(map(len, table))
    drawing = "\n".join(f"{former:{width}} -> {', '.join(ways)}" for former, ways in table.items() if ways)
    assert f"\n{drawing}\n" in MAP.read_text(encoding="utf-8")


def test_the_workflow_on_the_page_about_ci_is_the_one_to_copy() -> None:
    (shown,) = find_blocks(read([ROOT / "docs" / "guides" / "pytest.md"]), "yaml")
    lines = (ROOT / "deploy" / "ci" / "github.yml").read_text(encoding="utf-8").splitlines()
    assert shown.splitlines() == [line for line in lines if not line.startswith("#")]


def test_the_five_steps_of_the_readme_stand_in_the_script_of_the_tutorial() -> None:
    pages = (README, ROOT / "docs" / "tutorials" / "pytorch.md")
    steps, script = (block.splitlines() for block in find_blocks(read(pages), "python") if "# 5." in block)
    assert [line for line in steps if line not in script] == []


def test_each_line_for_a_shell_is_a_job_or_has_a_reason_not_to_be_run() -> None:
    programs = [line for line in find_shell_lines() if find_reason(line) is None]
    assert [line for line in programs if not re.match(r"(timeout .*)?hvdrun ", line)] == []


def test_the_scripts_that_are_not_run_are_those_of_others() -> None:
    tried = ("HVD_SNAPSHOT_DIR", "snapshot.samples", "StatefulDataLoader", "full_state_dict")  # a test runs these
    scripts = [block for block in find_blocks(read(), "py") if not any(word in block for word in tried)]
    assert len(scripts) == 3
    assert not any("hvd" in script for script in scripts)


@pytest.mark.parametrize("command", find_commands())
def test_hvdrun_takes_each_command_line_of_the_docs(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in _FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    if "-np" not in command:  # the hosts are those of a scheduler
        monkeypatch.setenv("LSB_JOBID", "1")
        monkeypatch.setenv("LSB_DJOB_HOSTFILE", str(tmp_path / "hosts.lsf"))
    assert read_spec(["--dry-run", *shlex.split(command)]).workers.size >= 1
