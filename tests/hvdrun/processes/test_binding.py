"""Which CPUs a worker may run on."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdrun.errors import LaunchError
from hvdrun.processes.binding import Binder, BindTo, Cpu, choose_cpus, describe_cpus, parse_cpus, read_topology

# Two sockets with two cores each, and two hardware threads a core. The NUMA nodes are numbered in the opposite order of
# the sockets, so that a test notices if the two are exchanged.
TOPOLOGY = tuple(Cpu(number, core=number % 4, socket=number % 4 // 2, numa=1 - number % 4 // 2) for number in range(8))


def make_tree(system: Path, topology: Sequence[Cpu], siblings: str = "core_cpus_list") -> Path:
    """What /sys/devices/system shows of such a machine."""
    for cpu in topology:
        folder = system / "cpu" / f"cpu{cpu.number}" / "topology"
        folder.mkdir(parents=True)
        same_core = [str(other.number) for other in topology if other.core == cpu.core]
        (folder / siblings).write_text(f"{','.join(same_core)}\n")
        (folder / "physical_package_id").write_text(f"{cpu.socket}\n")
    for numa in {cpu.numa for cpu in topology}:
        folder = system / "node" / f"node{numa}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(describe_cpus({cpu.number for cpu in topology if cpu.numa == numa}) + "\n")
    (system / "node" / "possible").write_text("0-1\n")
    return system


@pytest.mark.parametrize(
    ("bind_to", "dealt"),
    [
        (BindTo.CORE, [{0, 4}, {1, 5}, {2, 6}, {3, 7}, {0, 4}]),
        (BindTo.SOCKET, [{0, 1, 4, 5}, {2, 3, 6, 7}, {0, 1, 4, 5}]),
        (BindTo.NUMA, [{2, 3, 6, 7}, {0, 1, 4, 5}, {2, 3, 6, 7}]),
        (BindTo.NONE, [None, None]),
    ],
)
def test_workers_get_cores_sockets_or_numa_nodes_in_turn(bind_to: BindTo, dealt: list[set[int] | None]) -> None:
    assert [choose_cpus(TOPOLOGY, bind_to, local_rank) for local_rank in range(len(dealt))] == dealt


def test_without_any_cpu_to_choose_from_nothing_is_bound() -> None:
    assert choose_cpus((), BindTo.CORE, 0) is None


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=16),
    st.sampled_from([BindTo.CORE, BindTo.SOCKET, BindTo.NUMA]),
)
def test_as_many_workers_as_parts_share_no_cpu_and_use_them_all(
    parts: list[tuple[int, int, int]], bind_to: BindTo
) -> None:
    topology = tuple(Cpu(number, *part) for number, part in enumerate(parts))
    seen: list[frozenset[int]] = []
    while (cpus := choose_cpus(topology, bind_to, len(seen))) is not None and cpus not in seen:
        assert cpus
        assert all(cpus.isdisjoint(others) for others in seen)
        seen.append(cpus)
    assert frozenset[int]().union(*seen) == {cpu.number for cpu in topology}


@pytest.mark.parametrize("siblings", ["core_cpus_list", "thread_siblings_list"])
def test_the_topology_is_read_as_linux_shows_it(tmp_path: Path, siblings: str) -> None:
    assert read_topology(set(range(8)), make_tree(tmp_path, TOPOLOGY, siblings)) == TOPOLOGY


def test_only_cpus_that_this_process_may_use_are_counted(tmp_path: Path) -> None:
    allowed = read_topology({1, 5, 6}, make_tree(tmp_path, TOPOLOGY))
    dealt = [choose_cpus(allowed, BindTo.CORE, local_rank) for local_rank in range(3)]
    assert dealt == [frozenset({1, 5}), frozenset({6}), frozenset({1, 5})]


def test_where_linux_shows_nothing_each_cpu_is_a_core_of_one_machine(tmp_path: Path) -> None:
    assert read_topology({0, 3}, tmp_path) == (Cpu(0, 0, 0, 0), Cpu(3, 3, 0, 0))


def test_a_socket_without_a_number_is_the_first(tmp_path: Path) -> None:
    folder = tmp_path / "cpu/cpu0/topology"
    folder.mkdir(parents=True)
    (folder / "physical_package_id").write_text("-1\n")
    assert read_topology({0}, tmp_path) == (Cpu(0, 0, 0, 0),)


@pytest.mark.parametrize(
    ("text", "cpus"), [("0", {0}), ("0-3", {0, 1, 2, 3}), ("0,4-5,9", {0, 4, 5, 9}), ("", set()), ("x", set())]
)
def test_a_list_of_cpus_is_read(text: str, cpus: set[int]) -> None:
    assert parse_cpus(text) == cpus


@given(st.sets(st.integers(0, 40), min_size=1))
def test_described_cpus_parse_as_the_same_cpus(cpus: set[int]) -> None:
    assert parse_cpus(describe_cpus(cpus)) == cpus


def test_a_process_is_bound_by_its_number() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        Binder(BindTo.CORE).bind(process.pid, 0)
        chosen = choose_cpus(read_topology(os.sched_getaffinity(0)), BindTo.CORE, 0)
        assert frozenset(os.sched_getaffinity(process.pid)) == chosen
    Binder(BindTo.CORE).bind(process.pid, 0)  # no error: the process has ended, which others report


def test_a_refused_binding_is_reported_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    absent = 4095  # beyond what this machine has
    own = os.sched_getaffinity(0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {absent})
    binder = Binder(BindTo.CORE, tmp_path)
    monkeypatch.undo()
    with pytest.raises(LaunchError, match=r"the CPUs 4095: .*; start it with -bind-to none\.$"):
        binder.bind(os.getpid(), 0)
    with pytest.raises(LaunchError, match="4095"), binder.bound(0):
        pytest.fail("it continued")
    assert os.sched_getaffinity(0) == own


def test_the_binding_of_a_worker_is_described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)))
    system = make_tree(tmp_path, TOPOLOGY)
    assert Binder(BindTo.NONE, system).describe(0) == ""
    assert Binder(BindTo.SOCKET, system).describe(1) == ", bound to CPUs 2-3,6-7"
    assert Binder(BindTo.CORE, tmp_path / "nothing").describe(1) == ", bound to CPU 1"
