"""torchrun's command line: what it means in hvdrun, and what is refused."""

import os

import pytest

from hvdrun.errors import HvdrunError
from hvdrun.options.option import RawValues
from hvdrun.options.table import BY_DEST
from hvdrun.options.torchrun import BY_FLAG, OPTIONS, Request, parse, translate


def read(words: str, gpus: int = 0) -> Request:
    return translate(*parse(words.split()), lambda: gpus)


def test_the_options_are_those_of_torchrun_and_five_of_hvdrun() -> None:
    flags = [flag for option in OPTIONS for flag in option.flags]
    assert len(set(flags)) == len(flags)
    actions = pytest.importorskip("torch.distributed.run").get_args_parser()._actions
    of_torchrun = {flag: action.nargs == 0 for action in actions for flag in action.option_strings if "_" not in flag}
    assert {flag: not BY_FLAG[flag].takes_value for flag in of_torchrun} == of_torchrun
    own = {"-H", "--hosts", "--hostfile", "-v", "--verbose", "--dry-run"}
    assert set(flags) - of_torchrun.keys() == own
    assert all(set(option.flags) <= set(BY_DEST[option.dest].flags) for option in OPTIONS if own & set(option.flags))


@pytest.mark.parametrize(
    ("words", "given"),
    [
        ("", {"size": "1"}),
        ("--nproc-per-node 4", {"size": "4"}),
        ("--nproc_per_node=4", {"size": "4"}),
        ("--nproc 4 --max_res 3", {"size": "4", "max_restarts": "3"}),
        ("--nnodes 2 --nproc-per-node 4 -H a:4,b:4", {"size": "8", "hosts": "a:4,b:4"}),
        ("--nnodes 1:2 --nproc-per-node 4 --hostfile f", {"size": "8", "min_size": "4", "hostfile": "f"}),
        ("--nnodes 2:2 --nproc-per-node 4 -Ha:4,b:4", {"size": "8", "hosts": "a:4,b:4"}),
        ("--log-dir d -r 3", {"size": "1", "output_folder": "d"}),
        ("--log-dir d -r0 -t 0:0,1:2", {"size": "1", "output_folder": "d"}),
        ("--redirects 0 --tee 0", {"size": "1"}),
        ("--shutdown-timeout 9 -v", {"size": "1", "grace_seconds": "9", "verbose": True}),
        ("--numa-binding node", {"size": "1", "bind_to": "numa"}),
        ("--numa_binding=socket", {"size": "1", "bind_to": "socket"}),
    ],
)
def test_an_option_of_torchrun_gives_the_value_of_hvdruns_options(words: str, given: dict[str, RawValues]) -> None:
    meant = read(f"{words} train.py --nnodes 9 --lr_x 0.1")
    assert meant.given == given
    assert meant.command == ("python", "train.py", "--nnodes", "9", "--lr_x", "0.1")
    assert meant.remarks == []


@pytest.mark.parametrize(
    ("asked", "gpus", "size"), [("gpu", 3, 3), ("auto", 3, 3), ("auto", 0, None), ("cpu", 3, None)]
)
def test_the_accelerators_or_cores_of_this_machine_are_counted(asked: str, gpus: int, size: int | None) -> None:
    cores = len(os.sched_getaffinity(0))
    assert read(f"--nproc-per-node {asked} train.py", gpus).given == {"size": str(size or cores)}


@pytest.mark.parametrize(
    ("words", "command"),
    [
        ("-m package.module -x", "python -m package.module -x"),
        ("--no-python ./train.sh -x", "./train.sh -x"),
        ("--run-path /a/train.py -x", "python /a/train.py -x"),
        ("--run-path --no-python -m /a/train.py", "python /a/train.py"),
        ("-- train.py -- -x", "python train.py -- -x"),
    ],
)
def test_the_words_of_torchrun_become_the_command_that_torchrun_would_run(words: str, command: str) -> None:
    assert " ".join(read(words).command) == command


def test_all_options_without_an_effect_are_named_in_one_remark() -> None:
    words = (
        "--standalone --rdzv_backend c10d --rdzv-endpoint a:1 --rdzv-id 7 --rdzv-conf a=1 --master-addr a "
        "--master-port 29500 --node-rank 0 --local-addr b --monitor-interval 0.1 --start-method fork "
        "--role x --event-log-handler y --logs-specs z --standalone"
    )
    (remark,) = read(f"{words} train.py").remarks
    flags = [f"--{word[2:].replace('_', '-')}" for word in words.split() if word.startswith("--")][:-1]
    assert remark == f"{', '.join(flags)} have no effect: hvdrun connects, starts and watches the workers by itself."


@pytest.mark.parametrize(
    ("words", "remark"),
    [
        ("--log-dir d", "--log-dir has no effect: --redirects 3 or --tee 3 asks for files."),
        ("-r 3 -t 1", "--redirects, --tee have no effect: --log-dir DIR names the folder for the files."),
        ("--local-ranks-filter 0", "--local-ranks-filter has no effect: all workers' lines are shown"),
        ("--signals-to-handle SIGTERM", "--signals-to-handle has no effect: SIGTERM, SIGINT and SIGHUP end the job"),
        (
            "--numa-binding exclusive",
            "--numa-binding exclusive has no effect: hvdrun binds workers to whole NUMA nodes",
        ),
    ],
)
def test_a_remark_says_what_replaces_an_option_without_an_effect(words: str, remark: str) -> None:
    meant = read(f"{words} train.py")
    assert (meant.given, len(meant.remarks)) == ({"size": "1"}, 1)
    assert meant.remarks[0].startswith(remark)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("", "there is no script to run: put it last, as in hvdrun torchrun --nproc-per-node 2 train.py."),
        ("-m", "there is no script to run"),
        ("-m --no-python x", "--module and --no-python exclude each other"),
        ("--nnodes 2:1 x", "--nnodes takes a number of hosts, or MIN:MAX, as in --nnodes 2, not '2:1'"),
        ("--nnodes 0 x", "--nnodes takes a number of hosts"),
        ("--nnodes 1: x", "--nnodes takes a number of hosts"),
        ("--nproc-per-node 0 x", "--nproc-per-node takes a number of workers, gpu, cpu or auto"),
        ("--nproc-per-node mps x", "--nproc-per-node takes a number of workers, gpu, cpu or auto"),
        ("--nproc_per_node gpu x", "--nproc-per-node gpu counts the GPUs of this machine, which has none"),
        ("--nproc-per-node xpu x", "--nproc-per-node xpu needs a count of XPUs"),
        ("--node_rank 1 x", "--node-rank 1 is for a command on each host: run this one once, on one host"),
        ("--node-rank $RANK x", "--node-rank takes a whole number"),
        ("--virtual-local-rank x", "--virtual-local-rank has no equivalent"),
        ("--redirects 4 x", "--redirects takes 0, 1, 2 or 3"),
        ("--start-method thread x", "--start-method takes spawn, fork or forkserver"),
        ("--numa-binding core x", "--numa-binding takes node, socket, exclusive or core-complex"),
        ("--shutdown-timeout 1m x", "--shutdown-timeout takes a whole number"),
        ("--standalone=1 x", "--standalone takes no value"),
        ("--rdzv-id", "--rdzv-id lacks its value"),
        ("--rdzv x", "--rdzv could be --rdzv-backend, --rdzv-conf, --rdzv-endpoint or --rdzv-id"),
        ("--min-np 2 x", "there is no option '--min-np': hvdrun torchrun --help lists all options."),
        (
            "--nnodes 2 --nproc-per-node 4 -H a,b:4 x",
            "a has 1 slot, and --nproc-per-node starts 4 on each host: write a:4.",
        ),
        ("--nnodes 2 --nproc-per-node 4 -H a:8,b:8 x", "a has 8 slots"),
    ],
)
def test_wrong_use_is_refused_with_2(words: str, sentence: str) -> None:
    with pytest.raises(HvdrunError) as caught:
        read(words)
    assert sentence in str(caught.value)
    assert caught.value.exit_code == 2
