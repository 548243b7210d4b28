"""A lab's hosts are hosts: they have their own names, addresses, folders, processes and ssh servers."""

import os
import platform
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab.fixtures import BuildLab, Labs
from tests.lab.host import Host
from tests.lab.lab import Lab
from tests.lab.login import KNOCK, LOGIN
from tests.lab.plan import Family, HostPlan, SshdPlan
from tests.lab.requirements import require_lab
from tests.waiting import wait_until

SHARED_MEMORY = "/dev/shm"  # noqa: S108 - each host has its own
IPV6_ONLY = (Family.IPV6,)
# Holds a connection that has not logged in.
HOLD = (
    "import socket, time; s = socket.create_connection(('{}', 22)); print(s.recv(99).decode(), flush=True); s.recv(1)"
)

CLONE = {"x86_64": 56, "aarch64": 220}  # the kernel's number of the call
# CLONE_VFORK and SIGCHLD: the parent waits until the child ends.
VFORK = """
import ctypes, os, time
if ctypes.CDLL(None).syscall({clone}, 0x4000 | 17, 0, 0, 0, 0):
    print("in the parent", flush=True)
else:
    print("in the child", flush=True)
    time.sleep(1)
    os._exit(0)
"""


def ask(host: Host, *words: str) -> str:
    """What a command on a host prints, which is to end well."""
    done = host.run(words)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def read_line(process: "subprocess.Popen[bytes]") -> str:
    """The next line that a started command prints."""
    assert process.stdout is not None
    return process.stdout.readline().decode().strip()


def test_hosts_reach_each_other_by_name_and_address_with_ssh(lab: BuildLab) -> None:
    hosts = lab(2)
    for here, there in ((hosts.launcher, "host1"), (hosts["host1"], "host2"), (hosts["host2"], "host2")):
        assert ask(here, *LOGIN, there, "hostname; pwd") == f"{there}\n{hosts[there].home}"
    for family in Family:
        assert ask(hosts.launcher, *LOGIN, hosts["host1"].network.address(family), "hostname") == "host1"
    assert "Name or service not known" in hosts.launcher.run([*LOGIN, "nobody", "true"]).stderr


def test_a_host_of_one_family_has_no_address_of_the_other(lab: BuildLab) -> None:
    hosts = lab([HostPlan("a", families=IPV6_ONLY), HostPlan("b", families=IPV6_ONLY)])
    assert ask(hosts["a"], *LOGIN, "b", "hostname") == "b"
    assert "inet " not in ask(hosts["a"], "ip", "address", "show", "eth0")
    with pytest.raises(LookupError, match="IPv4"):
        hosts["a"].network.address()


def test_each_host_of_a_lab_has_its_own_tmp_and_all_see_the_shared_folder(lab: BuildLab) -> None:
    hosts = lab(2)
    (hosts.shared / "note").write_text("for all", encoding="utf-8")
    mark = f"/tmp/{hosts.folder.name}-own"  # noqa: S108 - the host's own
    ask(hosts["host1"], "touch", mark, f"{SHARED_MEMORY}/{hosts.folder.name}")
    assert not Path(mark).exists()
    assert hosts["host1"].locate(Path(mark)).exists()
    assert hosts["host2"].run(["ls", mark]).returncode != 0
    assert hosts.folder.name not in ask(hosts["host2"], "ls", SHARED_MEMORY)
    assert [ask(host, "cat", str(hosts.shared / "note")) for host in hosts] == ["for all"] * 2


def test_a_started_command_is_its_own_process_with_the_hosts_pid(lab: BuildLab) -> None:
    host = lab(1)["host1"]
    process = host.start(["bash", "-c", "trap 'exit 7' INT; echo $$; while true; do read -t 1 <> <(:); done"])
    inside = int(read_line(process))
    found = [one for one in host.processes() if one.pid == process.pid]
    assert [one.pid_on_host for one in found] == [inside]
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 7


def test_a_command_that_does_not_end_is_killed_with_its_children(lab: BuildLab) -> None:
    host = lab(1)["host1"]
    with pytest.raises(AssertionError, match=r"(?s)not ended on host1 within 3 s.*stdout\nbegun"):
        host.run(["bash", "-c", "echo begun; sleep 60 & wait"], limit_seconds=3)
    assert host.processes() == ()


def test_all_processes_of_a_host_are_found_wherever_they_went(lab: BuildLab) -> None:
    hosts = lab(2)
    daemon = "setsid setsid env -i sleep 61 >/dev/null 2>&1 </dev/null & exit 0"
    ask(hosts.launcher, *LOGIN, "host1", daemon)

    def is_found() -> bool:
        left = [one for one in hosts["host1"].processes() if one not in hosts["host1"].sshd.processes()]
        return left != [] and all("sleep 61" in str(one) for one in left)

    wait_until(is_found)  # the left process runs `sleep` after several steps, and the login ends meanwhile
    assert hosts["host2"].processes() == ()


def test_a_lab_is_used_again_unless_a_test_has_changed_a_host(labs: Labs) -> None:
    require_lab()
    changes: dict[str, Callable[[Host], object]] = {
        "network": lambda host: host.network.slow(1_000_000),
        "process": lambda host: host.start(["sleep", "60"]),
        "file": lambda host: host.locate(Path("/tmp/left")).touch(),  # noqa: S108 - the host's own
        "home": lambda host: (host.home / ".ssh" / "config").touch(),
        "server": lambda host: host.sshd.kill(),
        "frozen": Host.freeze,
        "destroyed": Host.destroy,
    }
    plan = [HostPlan("changed")]
    first = labs.take(Lab(plan))
    (first.shared / "note").touch()
    labs.give_back(first)
    assert labs.take(Lab(plan)) is first
    assert list(first.shared.iterdir()) == []
    for name, change in changes.items():
        change(first["changed"])
        assert not first.is_new(), name
        labs.give_back(first)
        assert not first.folder.exists(), name
        first = labs.take(Lab(plan))
    first.close()


def test_frozen_processes_stand_still_until_thawed(lab: BuildLab) -> None:
    hosts = lab(1)
    host = hosts["host1"]
    echo = host.start(["cat"], stdin=subprocess.PIPE)
    stopped = host.start(["sleep", "60"])
    stopped.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, stopped.pid, os.WSTOPPED | os.WNOWAIT)
    host.freeze()
    assert {one.state for one in (*host.processes(), *host.sshd.processes())} == {"T"}
    assert hosts.launcher.run([*KNOCK, "host1", "true"]).returncode != 0
    host.thaw()
    assert echo.stdin is not None
    echo.stdin.write(b"awake\n")
    echo.stdin.flush()
    assert read_line(echo) == "awake"
    assert [one.state for one in host.processes() if one.pid == stopped.pid] == ["T"]
    assert ask(hosts.launcher, *LOGIN, "host1", "hostname") == "host1"


@pytest.mark.skipif(platform.machine() not in CLONE, reason="the number of clone() is not known here")
def test_a_process_that_waits_in_vfork_for_a_stopped_child_stands_still(lab: BuildLab) -> None:
    host = lab(1)["host1"]
    parent = host.start([sys.executable, "-c", VFORK.format(clone=CLONE[platform.machine()])])
    assert read_line(parent) == "in the child"
    host.freeze()
    assert sorted(one.state for one in host.processes()) == ["D", "T"]
    host.thaw()
    assert read_line(parent) == "in the parent"


def test_a_destroyed_host_is_gone_without_a_word_and_comes_back_empty(lab: BuildLab) -> None:
    hosts = lab(2)
    doomed = hosts["host1"]
    doomed.locate(Path("/tmp/mark")).touch()  # noqa: S108 - the host's own
    session = hosts.launcher.start([*LOGIN, "host1", "echo begun; sleep 60"])
    assert read_line(session) == "begun"
    local = doomed.start(["sleep", "60"])
    pids = [one.pid for one in (*doomed.processes(), *doomed.sshd.processes())]
    doomed.destroy()
    assert not doomed.is_up
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids if pid != local.pid)
    assert local.wait(0) == -signal.SIGKILL
    assert doomed.processes() == ()
    with pytest.raises(OSError, match="host host1 is not up"):
        doomed.run(["true"])
    assert hosts.launcher.run([*KNOCK, "host1", "true"]).returncode != 0
    assert session.poll() is None, "the other side has heard of it"
    again = hosts.reboot("host1")
    assert hosts["host1"] is again
    assert ask(hosts["host2"], *LOGIN, "host1", "hostname; ls /tmp/mark || true") == "host1"


def test_the_ssh_server_is_as_planned(lab: BuildLab) -> None:
    closed, busy = SshdPlan(accepts_key=False), SshdPlan(settings={"MaxStartups": "1:100:1"})
    hosts = lab([HostPlan("a", sshd=closed), HostPlan("b", sshd=busy), HostPlan("c", sshd=None)])
    assert "Permission denied (publickey)" in hosts.launcher.run([*LOGIN, "a", "true"]).stderr
    waiting = hosts.launcher.start(["python", "-c", HOLD.format(hosts["b"].network.address())])
    assert read_line(waiting).startswith("SSH-2.0")
    assert hosts.launcher.run([*LOGIN, "b", "true"]).returncode != 0
    assert "Connection refused" in hosts.launcher.run([*LOGIN, "c", "true"]).stderr


def test_a_killed_ssh_server_takes_its_sessions_with_it_and_a_stopped_one_does_not(lab: BuildLab) -> None:
    hosts = lab(1)
    host = hosts["host1"]

    def log_in() -> "subprocess.Popen[bytes]":
        session = hosts.launcher.start([*LOGIN, "host1", "echo begun; sleep 60"])
        assert read_line(session) == "begun"
        return session

    first, second = log_in(), log_in()
    host.sshd.kill_sessions()
    assert [first.wait(60), second.wait(60)] == [255, 255]
    third = log_in()
    host.sshd.stop()
    assert third.poll() is None
    assert "Connection refused" in hosts.launcher.run([*LOGIN, "host1", "true"]).stderr
    host.sshd.kill()
    assert third.wait(60) == 255
    assert [one.command for one in host.processes() if one.program == "sleep"] == [("sleep", "60")] * 3
