"""All options of torchrun, in its own order, and what each means for hvdrun.

torchrun's variables (PET_NNODES and so on) are not read, which a remark says.
"""

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from hvdrun.errors import UsageError
from hvdrun.options import foreign
from hvdrun.options.foreign import DECIMAL, INTEGER, TEXT, ForeignOption, ignored, page, same
from hvdrun.options.kinds import FOLDER, parse_integer
from hvdrun.options.option import Kind, RawValues
from hvdrun.options.words import Typed, explain_no_effect
from hvdrun.processes.accelerators import count_accelerators
from hvdrun.spec.hosts import count_slots, parse_hosts
from rendezvous.core.model import Host

_LIST = "hvdrun torchrun --help lists all options."


class Device(StrEnum):
    """What --nproc-per-node can count instead of naming a number."""

    AUTO = "auto"
    CPU = "cpu"
    GPU = "gpu"
    XPU = "xpu"


class StartMethod(StrEnum):
    """How torchrun creates workers."""

    SPAWN = "spawn"
    FORK = "fork"
    FORKSERVER = "forkserver"


class NumaBinding(StrEnum):
    """To which CPUs torchrun binds a worker."""

    NODE = "node"
    SOCKET = "socket"
    EXCLUSIVE = "exclusive"
    CORE_COMPLEX = "core-complex"


def parse_workers(text: str) -> int | Device:
    """Read `4`, or what is counted.

    Raises:
        ValueError: the text is neither.
    """
    if text in set(Device):
        return Device(text)
    return parse_integer(text)


def parse_nodes(text: str) -> tuple[int, int]:
    """Read `2` or `1:2` as the least and the largest number of hosts.

    Raises:
        ValueError: the text has another form, or the first number is the larger one.
    """
    least, colon, most = text.partition(":")
    bounds = parse_integer(least), parse_integer(most if colon else least)
    if bounds[0] > bounds[1]:
        raise ValueError(text)
    return bounds


_STREAMS = re.compile(r"[0-3]|\d+:[0-3](,\d+:[0-3])*", re.ASCII)


def parse_streams(text: str) -> frozenset[str]:
    """Read `3` or `0:3,1:1`: which streams of which workers go to files.

    Raises:
        ValueError: the text has another form.
    """
    if not _STREAMS.fullmatch(text):
        raise ValueError(text)
    return frozenset(piece[-1] for piece in text.split(",")) - {"0"}


_WORKERS = Kind(parse_workers, "N", "a number of workers, gpu, cpu or auto", "4")
_NODES = Kind(parse_nodes, "N", "a number of hosts, or MIN:MAX", "2")
_STREAMS_KIND = Kind(parse_streams, "STREAMS", "0, 1, 2 or 3, or one of them for each local rank", "3")
_METHOD = Kind(StartMethod, "METHOD", "spawn, fork or forkserver")
_NUMA = Kind(NumaBinding, "WHAT", "node, socket, exclusive or core-complex")

_VARIABLES = "hvdrun reads torchrun's options from the command line alone"
_OWN_WAY = "hvdrun connects, starts and watches the workers by itself"
_OWN_SIGNALS = "SIGTERM, SIGINT and SIGHUP end the job, SIGUSR1 goes to the workers"
_ALL_SHOWN = "all workers' lines are shown, and grep -F '[0]' selects those of rank 0"
_BOUND_BY_NUMBER = "hvdrun binds workers to whole NUMA nodes (node) or sockets (socket)"
_NO_FOLDER = "--log-dir DIR names the folder for the files"
_NO_FILES = "--redirects 3 or --tee 3 asks for files"
_BINDINGS = {NumaBinding.NODE: "numa", NumaBinding.SOCKET: "socket"}
_NODE_RANK, _VIRTUAL_RANK = "--node-rank", "--virtual-local-rank"


def _own(spellings: str, dest: str, text: str, kind: Kind | None = None) -> ForeignOption:
    """An option whose value is checked here; `translate` says what it means."""
    return ForeignOption(spellings, dest, text, kind, meaning=None if kind is None else str)


OPTIONS: tuple[ForeignOption, ...] = (
    page("-h --help", "help", "Print this page."),
    _own("--nnodes", "nodes", "How many of the hosts are used; with MIN:MAX the job continues with MIN.", _NODES),
    _own(
        "--nproc-per-node",
        "per_node",
        "How many workers each host has; auto, gpu and cpu count the accelerators or cores of this machine.",
        _WORKERS,
    ),
    *(ignored(f"--rdzv-{name}", _OWN_WAY, TEXT) for name in ("backend", "endpoint", "id", "conf")),
    ignored("--standalone", _OWN_WAY),
    same("--max-restarts"),
    ignored("--monitor-interval", _OWN_WAY, DECIMAL),
    ignored("--start-method", _OWN_WAY, _METHOD),
    ignored("--event-log-handler", _OWN_WAY, TEXT),
    ignored("--role", _OWN_WAY, TEXT),
    _own("-m --module", "module", "SCRIPT is the name of a module, as with python -m."),
    _own("--no-python", "no_python", "SCRIPT is any program, and not a script of Python."),
    _own("--run-path", "run_path", "SCRIPT is a script of Python, whatever the two options before say."),
    _own("--log-dir", "log_dir", "With --redirects or --tee: as hvdrun's --output-filename.", FOLDER),
    _own("-r --redirects", "redirects", "With --log-dir: all output goes to files, and is shown.", _STREAMS_KIND),
    _own("-t --tee", "tee", "The same.", _STREAMS_KIND),
    ignored("--local-ranks-filter", _ALL_SHOWN, TEXT),
    ignored("--duplicate-stdout-filters", _ALL_SHOWN, TEXT),
    ignored("--duplicate-stderr-filters", _ALL_SHOWN, TEXT),
    ignored(_NODE_RANK, _OWN_WAY, INTEGER),
    ignored("--master-addr", _OWN_WAY, TEXT),
    ignored("--master-port", _OWN_WAY, INTEGER),
    ignored("--local-addr", _OWN_WAY, TEXT),
    ignored("--logs-specs", _OWN_WAY, TEXT),
    _own("--numa-binding", "numa", "node and socket: as hvdrun's -bind-to numa and socket.", _NUMA),
    ignored("--signals-to-handle", _OWN_SIGNALS, TEXT),
    ForeignOption("--shutdown-timeout", "grace_seconds", "As hvdrun's --grace.", INTEGER, meaning=str),
    ForeignOption(_VIRTUAL_RANK, "", "Refused: each worker sees all GPUs of its host."),
    same("-H --hosts"),
    same("--hostfile"),
    same("-v --verbose"),
    _own("--dry-run", "dry_run", "Print the command line of hvdrun that means the same, and start nothing."),
)
BY_FLAG: Mapping[str, ForeignOption] = {flag: option for option in OPTIONS for flag in option.flags}


class Request(NamedTuple):
    """What a command line of torchrun asks for.

    given: values for options of hvdrun by dest. remarks: about options without an effect. command: the workers'.
    nodes: the largest number of hosts. per_node: the number of workers on each.
    """

    given: dict[str, RawValues]
    command: tuple[str, ...]
    remarks: list[str]
    nodes: int
    per_node: int


def parse(words: Sequence[str]) -> tuple[list[Typed], tuple[str, ...]]:
    """Read torchrun's command line: its options, and the script with its arguments.

    Raises:
        UsageError: an option does not exist, is ambiguous, or lacks its value.
    """
    return foreign.parse(words, find_option, BY_FLAG)


def find_option(word: str) -> Typed:
    """Return the option that a word names, with `-` or `_` between its words, and the value that the same word holds.

    Raises:
        UsageError: there is no such option, or several begin so.
    """
    flag, equals, value = word.partition("=")
    return foreign.find_option(f"{flag.replace('_', '-')}{equals}{value}", BY_FLAG, _LIST)


def translate(
    typed: Sequence[Typed], words: tuple[str, ...], count_gpus: Callable[[], int] = count_accelerators
) -> Request:
    """Turn torchrun's options, script and arguments into those of hvdrun.

    Args:
        typed: the options.
        words: the script and its arguments.
        count_gpus: counts the accelerators of this machine.

    Raises:
        UsageError: an option does not take such a value, or means nothing to hvdrun.
    """
    meant, remarks = foreign.translate(typed, BY_FLAG)
    for each in typed:
        _refuse(each)
    per_node = count_workers(parse_workers(str(meant.pop("per_node", "1"))), count_gpus)
    least, most = parse_nodes(str(meant.pop("nodes", "1")))
    given: dict[str, RawValues] = {"size": str(per_node * most)}
    if least < most:
        given["min_size"] = str(per_node * least)
    command = compose_command(meant, words)
    remarks += _choose_files(meant) + _choose_binding(meant)
    if "hosts" in meant:
        check_slots(parse_hosts(str(meant["hosts"])).hosts, per_node)
    return Request(given | meant, command, remarks, most, per_node)


def note_variables(typed: Sequence[Typed], environment: Mapping[str, str]) -> list[str]:
    """A remark on the variables that would give torchrun options which the command line does not give."""
    given = {flag for each in typed for flag in each.option.flags}
    names = {f"PET_{flag[2:].replace('-', '_').upper()}": flag for flag in BY_FLAG if flag[:2] == "--"}
    found = [name for name, flag in names.items() if name in environment and flag not in given]
    return [explain_no_effect(found, _VARIABLES)] if found else []


def count_workers(asked: int | Device, count_gpus: Callable[[], int]) -> int:
    """The number of workers on each host.

    Raises:
        UsageError: this machine has nothing to count, or it cannot be counted.
    """
    if not isinstance(asked, Device):
        return asked
    if asked is Device.XPU:
        raise UsageError("--nproc-per-node xpu needs a count of XPUs, which hvdrun does not have: give the number.")
    gpus = 0
    if asked is not Device.CPU:
        gpus = count_gpus()
    if asked is Device.GPU and not gpus:
        raise UsageError("--nproc-per-node gpu counts the GPUs of this machine, which has none: give the number.")
    return gpus or len(os.sched_getaffinity(0))


def compose_command(meant: dict[str, RawValues], words: tuple[str, ...]) -> tuple[str, ...]:
    """The workers' command. The options that decide it are removed from `meant`.

    Raises:
        UsageError: there is no script, or the options contradict each other.
    """
    is_path, is_module, is_program = (meant.pop(dest, False) for dest in ("run_path", "module", "no_python"))
    if not words:
        raise UsageError("there is no script to run: put it last, as in hvdrun torchrun --nproc-per-node 2 train.py.")
    if is_path:
        return "python", *words
    if is_module and is_program:
        raise UsageError("--module and --no-python exclude each other: give only one of them.")
    if is_program:
        return words
    if is_module:
        return ("python", "-m", *words)
    return ("python", *words)


def _refuse(typed: Typed) -> None:
    """Refuse an option of which hvdrun would make something else.

    Raises:
        UsageError: hvdrun would make something else of the option.
    """
    if typed.flag == _NODE_RANK and int(typed.values[0]) > 0:
        raise UsageError(
            f"{_NODE_RANK} {typed.values[0]} is for a command on each host: run this one once, on one host, and name "
            "all hosts with -H."
        )
    if typed.flag == _VIRTUAL_RANK:
        raise UsageError(
            f"{_VIRTUAL_RANK} has no equivalent, each worker sees all GPUs of its host: let the script use the one of "
            "LOCAL_RANK."
        )


def _choose_files(meant: dict[str, RawValues]) -> list[str]:
    """Turn --log-dir, --redirects and --tee into --output-filename; return a remark where one lacks the other."""
    folder = meant.pop("log_dir", None)
    streams = {flag: str(meant.pop(dest, "0")) for flag, dest in (("--redirects", "redirects"), ("--tee", "tee"))}
    asking = [flag for flag, text in streams.items() if parse_streams(text)]
    if folder is not None and asking:
        meant["output_folder"] = folder
        return []
    if folder is not None:
        return [explain_no_effect(["--log-dir"], _NO_FILES)]
    if asking:
        return [explain_no_effect(asking, _NO_FOLDER)]
    return []


def _choose_binding(meant: dict[str, RawValues]) -> list[str]:
    """Turn --numa-binding into -bind-to; return a remark where nothing fits."""
    if "numa" not in meant:
        return []
    asked = NumaBinding(str(meant.pop("numa")))
    if asked not in _BINDINGS:
        return [explain_no_effect([f"--numa-binding {asked}"], _BOUND_BY_NUMBER)]
    meant["bind_to"] = _BINDINGS[asked]
    return []


def check_slots(hosts: Iterable[Host], per_node: int) -> None:
    """Refuse hosts with another number of slots: hvdrun would give them other workers than torchrun.

    Raises:
        UsageError: a host has another number.
    """
    for host in hosts:
        if host.slots != per_node:
            raise UsageError(
                f"{host.name} has {count_slots(host.slots)}, and --nproc-per-node starts {per_node} on each host: "
                f"write {host.name}:{per_node}."
            )
