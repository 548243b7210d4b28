"""`hvdrun torchrun`: the job it asks for, and the pages that it prints."""

import shlex
from pathlib import Path

import pytest

from hvdrun.cli.program import main, read_spec
from hvdrun.cli.torchrun import read_request
from hvdrun.errors import UsageError
from hvdrun.options.torchrun import OPTIONS
from hvdrun.spec.jobspec import JobSpec
from tests.documentation import ROOT, find_blocks, read


def read_job(words: str, environment: dict[str, str] | None = None) -> JobSpec:
    spec = read_request(shlex.split(words), environment or {})
    assert isinstance(spec, JobSpec)
    return spec


@pytest.mark.parametrize(
    ("words", "same"),
    [
        ("--nproc-per-node 2 --max-restarts 3 train.py -x", "-np 2 --max-restarts 3 python train.py -x"),
        (
            "--nnodes 1:2 --nproc-per-node 4 -H a:4,b:4 -m train",
            "-np 8 --min-np 4 -H a:4,b:4 python -m train",
        ),
    ],
)
def test_torchrun_gives_the_same_job_as_hvdrun(words: str, same: str) -> None:
    assert read_job(words) == read_spec(shlex.split(same))


def test_hosts_may_be_those_of_an_allocation(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("a\na\nb\nb\n", encoding="utf-8")
    environment = {"LSB_JOBID": "1", "LSB_DJOB_HOSTFILE": str(hosts)}
    spec = read_job("--nnodes 2 --nproc-per-node 2 --rdzv-id 1 train.py", environment)
    assert [(host.name, host.slots) for host in spec.workers.hosts] == [("a", 2), ("b", 2)]
    assert next(remark.split()[0] for remark in spec.display.remarks) == "--rdzv-id"


def test_a_remark_names_the_variables_of_torchrun_that_are_not_read() -> None:
    environment = {"PET_NPROC_PER_NODE": "4", "PET_MAX_RESTARTS": "1", "PET_NNODES": "1", "PET_OTHER": "1"}
    spec = read_job("--max-restarts 2 train.py", environment)
    (remark,) = spec.display.remarks
    assert remark.startswith("PET_NNODES, PET_NPROC_PER_NODE have no effect: hvdrun reads torchrun's options from the ")
    assert read_job("train.py", {"PET_OTHER": "1"}).display.remarks == ()


def test_a_hostfile_gives_each_host_as_many_slots_as_torchrun_starts_workers(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("a slots=4\nb slots=4\n", encoding="utf-8")
    with pytest.raises(UsageError, match="a has 4 slots, and --nproc-per-node starts 2 on each host"):
        read_job(f"--nnodes 2 --nproc-per-node 2 --hostfile {hosts} train.py")
    assert read_job(f"--nnodes 2 --nproc-per-node 4 --hostfile {hosts} train.py").workers.size == 8


def test_dry_run_starts_nothing_and_prints_the_command_lines_of_the_page(capfd: pytest.CaptureFixture[str]) -> None:
    blocks = find_blocks(read([ROOT / "docs" / "moving" / "from-torchrun.md"]), "console")
    shown = [line for block in blocks for line in block.splitlines() if "torchrun --dry-run" in block]
    assert len(shown) == 2
    command, line = shown
    assert main(shlex.split(command.removeprefix("$ hvdrun "))) == 0
    assert capfd.readouterr().out == f"{line}\n"


def test_a_line_of_dry_run_is_quoted_for_a_shell() -> None:
    line = read_request(["--dry-run", "--log-dir", "my logs", "--tee", "3", "-v", "train.py", "a b", "*", "--dry-run"])
    assert line == "hvdrun -np 1 -v --output-filename 'my logs' python train.py 'a b' '*' --dry-run"
    assert read_request(["--dry-run", "--no-python", "--", "-run"]) == "hvdrun -np 1 -- -run"


def test_help_lists_all_options(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["torchrun", "--help"]) == 0
    page = capfd.readouterr().out
    assert all(", ".join(option.flags) in page for option in OPTIONS)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--nnodes 2 --nproc-per-node 4 train.py", "name them with -H server1:4,server2:4, and run this command once"),
        ("--dry-run --nnodes 1:2 train.py", "name them with -H server1:1,server2:1"),
        ("--max-restarts -1 train.py", "--max-restarts takes a number from 0"),
        ("--nnodes 3 --nproc-per-node 2 -H a:2,b:2 train.py", "6 workers do not fit into the 4 slots"),
    ],
)
def test_wrong_use_exits_with_2(words: str, sentence: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["torchrun", *words.split()]) == 2
    assert sentence in capfd.readouterr().err
