"""What is wrong with the hosts of a job, by the facts that their agents have found; pure.

Where hosts differ, the value of most of them counts as right; among equal numbers that of the host that comes first.
"""

import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from hvdrun.spec.facts import Facts

GIBIBYTE = 1 << 30
LEAST_FREE = GIBIBYTE  # of a folder
LEAST_SHARED = GIBIBYTE  # a container has 64 MiB unless it is asked for more, which one DataLoader fills
LEAST_MEMORY = GIBIBYTE // 2  # for each worker: an import of torch takes a third of it
LEAST_FILES = 1025  # with 1,024 strangers can use up those of a worker
LEAST_TASKS = 64  # for each worker: its threads
CLOCK_SECONDS = 2.0
_EQUAL = ("torch", "mxnet", "numpy", "cloudpickle")  # what workers exchange depends on their versions
_NEEDED = ("torch", "mxnet")
_NCCL = "nvidia-nccl"
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - its name, for a sentence
# The oldest driver for each version of CUDA: NVIDIA, "CUDA Compatibility", minor version compatibility.
_OLDEST_DRIVERS = {11: 450, 12: 525, 13: 580}
_NAMED = 4  # hosts, in a sentence


@dataclass(frozen=True, slots=True)
class Host:
    """A host, as its agent has seen it.

    facts: what it has found. slots: how many workers it may get.
    is_here: it is this machine.
    clock_offset: by how many seconds its clock is ahead of this machine's; uncertainty: how wrong that may be.
    """

    facts: Facts
    slots: int = 1
    is_here: bool = False
    clock_offset: float = 0.0
    uncertainty: float = 0.0


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong.

    what: a sentence without a full stop. hosts: where. remedy: a command, or what to do; "" where the sentence says it.
    """

    what: str
    hosts: tuple[str, ...]
    remedy: str = ""


Hosts = Mapping[str, Host]


def diagnose(hosts: Hosts) -> list[Finding]:
    """All findings, those that differ between hosts first."""
    return _apply(_RULES, hosts)


def diagnose_at_start(hosts: Hosts) -> list[Finding]:
    """The findings that a job should not begin without: each is rarely wanted, and costs hours when it is not seen."""
    return _apply(_AT_START, hosts)


def _apply(rules: Sequence[Callable[[Hosts], Iterator[Finding]]], hosts: Hosts) -> list[Finding]:
    known = {name: host for name, host in hosts.items() if not host.facts.failure}
    unknown = [
        Finding(f"{name} could not be examined ({host.facts.failure})", (name,), _at(host, name, "hvdrun doctor"))
        for name, host in hosts.items()
        if host.facts.failure
    ]
    return [*unknown, *(finding for rule in rules for finding in rule(known))]


def _find_differences(what: str, values: Mapping[str, str], remedy: str) -> Iterator[Finding]:
    """Hosts whose value is not that of most.

    Args:
        what: has these values.
        values: the value of each host; "" is left to other rules.
        remedy: with {usual} for the value of most, without what stands behind a `+` in a version.
    """
    present = {name: value for name, value in values.items() if value}
    usual = Counter(present.values()).most_common(1)[0][0] if present else ""
    for value in dict.fromkeys(present.values()):
        if value != usual:
            where = tuple(name for name in present if present[name] == value)
            others = _list_some([name for name in present if present[name] == usual])
            sentence = f"{what} {value} on {_list_some(where)}, but {usual} on {others}"
            yield Finding(sentence, where, remedy.format(usual=usual.partition("+")[0]))


def find_python(hosts: Hosts) -> Iterator[Finding]:
    """Pythons that cannot read each other's pickled functions."""
    versions = {name: ".".join(host.facts.python.split(".")[:2]) for name, host in hosts.items()}
    yield from _find_differences(
        "Python", versions, "hvdrun --remote-python PATH, where PATH is Python {usual} on each host"
    )


def find_packages(hosts: Hosts) -> Iterator[Finding]:
    """Packages of which the versions differ, or that some hosts lack."""
    for package in _EQUAL:
        versions = {name: host.facts.packages.get(package, "") for name, host in hosts.items()}
        yield from _find_differences(package, versions, f"python -m pip install {package}=={{usual}}")
    versions = {name: _find_nccl(host.facts) for name, host in hosts.items()}
    yield from _find_differences("NCCL", versions, "install the torch that brings NCCL {usual}")
    for package in _NEEDED:
        lacking = tuple(name for name, host in hosts.items() if package not in host.facts.packages)
        having = [name for name in hosts if name not in lacking]
        if lacking and having:
            version = hosts[having[0]].facts.packages[package].partition("+")[0]
            yield Finding(
                f"{package} is missing on {_list_some(lacking)}; {_list_some(having)} {_have(having)} it",
                lacking,
                f"python -m pip install {package}=={version}",
            )


def _find_nccl(facts: Facts) -> str:
    return next((version for name, version in facts.packages.items() if name.startswith(_NCCL)), "")


def find_accelerators(hosts: Hosts) -> Iterator[Finding]:
    """GPUs that cannot be used, are too few, or are busy."""
    drivers = {name: host.facts.driver for name, host in hosts.items()}
    yield from _find_differences("NVIDIA's driver", drivers, "install the driver {usual}")

    for name, host in hosts.items():
        facts = host.facts
        if facts.driver and "torch" in facts.packages and not facts.cuda:
            yield Finding(
                f"torch {facts.packages['torch']} on {name} is built without CUDA, but the host has an NVIDIA driver",
                (name,),
                "python -m pip install --force-reinstall torch",
            )

        oldest = _OLDEST_DRIVERS.get(_major(facts.cuda), 0)
        if facts.driver and _major(facts.driver) < oldest:
            yield Finding(
                f"NVIDIA's driver {facts.driver} on {name} is too old for the CUDA {facts.cuda} of its torch",
                (name,),
                f"install a driver of version {oldest} or newer",
            )

        if facts.accelerators and host.slots > facts.accelerators:
            yield Finding(
                f"{name} has {count(host.slots, 'slot')}, but {count(facts.accelerators, 'accelerator')}",
                (name,),
                f"hvdrun -H {name}:{facts.accelerators}",
            )

        for number, used in facts.busy.items():
            yield Finding(
                f"another program uses {describe_size(used)} of accelerator {number} on {name}",
                (name,),
                _at(host, name, "nvidia-smi"),
            )

    with_some = [name for name, host in hosts.items() if host.facts.accelerators]
    if without := tuple(name for name, host in hosts.items() if with_some and not host.facts.accelerators):
        yield Finding(
            f"no accelerator is visible on {_list_some(without)}; {_list_some(with_some)} {_have(with_some)} some",
            without,
            _at(hosts[without[0]], without[0], "nvidia-smi"),
        )


def find_full_disks(hosts: Hosts) -> Iterator[Finding]:
    """Folders that a job needs, and that are nearly full."""
    for name, host in hosts.items():
        for folder, free in host.facts.free.items():
            if free < LEAST_FREE:
                yield Finding(
                    f"{folder} on {name} has only {describe_size(free)} left",
                    (name,),
                    _at(host, name, f"df -h {folder}"),
                )


def find_shortages(hosts: Hosts) -> Iterator[Finding]:
    """Limits and memory that are too small for a job."""
    for name, host in hosts.items():
        facts = host.facts
        if facts.shared_memory is not None and facts.shared_memory < LEAST_SHARED:
            size = describe_size(facts.shared_memory)
            yield Finding(
                f"{_SHARED_MEMORY} on {name} has only {size}, which DataLoader's processes fill",
                (name,),
                _at(host, name, f"mount -o remount,size=8G {_SHARED_MEMORY}") + ", or docker run --shm-size=8g",
            )
        if facts.memory < LEAST_MEMORY * host.slots:
            what = f"{describe_size(facts.memory)} of memory is free on {name}, for {count(host.slots, 'worker')}"
            yield Finding(what, (name,), _at(host, name, "ps aux --sort=-rss | head"))
        if facts.files is not None and facts.files < LEAST_FILES + 2 * host.slots:
            what = f"a process on {name} may open only {facts.files:,} files"
            yield Finding(what, (name,), "raise the limit: `ulimit -Hn`, or nofile in /etc/security/limits.conf")
        if facts.processes is not None and facts.processes < LEAST_TASKS * host.slots:
            what = f"only {facts.processes:,} more processes and threads may start on {name}"
            what = f"{what}, for {count(host.slots, 'worker')}"
            yield Finding(what, (name,), "raise `ulimit -u`, or pids.max of the control group")


def find_clocks(hosts: Hosts) -> Iterator[Finding]:
    """Clocks that are wrong, as far as this machine's is right."""
    for name, host in hosts.items():
        if abs(host.clock_offset) > CLOCK_SECONDS + host.uncertainty:
            side = "ahead of" if host.clock_offset > 0 else "behind"
            what = f"the clock of {name} is {abs(host.clock_offset):,.0f} s {side} this machine's"
            yield Finding(what, (name,), _at(host, name, "timedatectl set-ntp true"))


def find_names(hosts: Hosts) -> Iterator[Finding]:
    """Hosts that do not know their own name, which scripts of torch.distributed look up; unreadable folders on PATH."""
    for name, host in hosts.items():
        if not host.facts.knows_name:
            own = host.facts.name
            command = f"echo 127.0.1.1 {shlex.quote(own)} >> /etc/hosts"
            yield Finding(f"the host {name} has no address for its own name {own!r}", (name,), _at(host, name, command))
        for folder in host.facts.unreadable:
            what = f"{folder} on PATH of {name} cannot be read by this user"
            yield Finding(what, (name,), "leave it out of PATH")


def find_leftovers(hosts: Hosts) -> Iterator[Finding]:
    """Processes and folders of earlier jobs."""
    for name, host in hosts.items():
        if left := host.facts.leftovers:
            first = max(left, key=lambda each: each.seconds)
            what = f"{count(len(left), 'process', 'es')} of earlier jobs on {name}, the oldest with pid {first.pid}"
            yield Finding(f"{what}, since {_time(first.seconds)}: {first.command}", (name,), "hvdrun doctor --clean")
        if host.facts.folders:
            what = f"{count(len(host.facts.folders), 'folder')} of killed agents on {name}: {host.facts.folders[0]}"
            yield Finding(what, (name,), "hvdrun doctor --clean")


_AT_START = (find_python, find_packages, find_full_disks, find_clocks, find_leftovers)
_RULES = (
    find_python,
    find_packages,
    find_accelerators,
    find_full_disks,
    find_shortages,
    find_clocks,
    find_names,
    find_leftovers,
)


def _at(host: Host, name: str, command: str) -> str:
    """The command, to be run here for that host."""
    return command if host.is_here else f"ssh {shlex.quote(name)} {shlex.quote(command)}"


def _major(version: str) -> int:
    first = version.partition(".")[0]
    return int(first) if first.isdecimal() else 0


def count(number: int, noun: str, plural: str = "s") -> str:
    """A number with its noun."""
    return f"{number:,} {noun}{'' if number == 1 else plural}"


def _have(names: Sequence[str]) -> str:
    return "has" if len(names) == 1 else "have"


def describe_size(count: int) -> str:
    """Bytes for a person."""
    return f"{count / GIBIBYTE:,.1f} GiB" if count >= GIBIBYTE else f"{count >> 20:,} MiB"


def _time(seconds: float) -> str:
    """A time span for a person."""
    for limit, unit in ((86_400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= limit:
            return f"{seconds / limit:.0f} {unit}"
    return f"{seconds:.0f} s"


def _list_some(names: Sequence[str]) -> str:
    more = [f"{len(names) - _NAMED} more"] if len(names) > _NAMED else []
    *most, last = [*names[:_NAMED], *more]
    return f"{', '.join(most)} and {last}" if most else last
