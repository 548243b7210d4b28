"""A lab's hosts are hosts: they have their own names, addresses, folders, processes and ssh servers."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.lab.fixtures import BuildLab
from tests.lab.host import Host
from tests.lab.login import KNOCK, LOGIN
from tests.lab.plan import Family, HostPlan, SshdPlan

SHARED_MEMORY = "/dev/shm"  # noqa: S108 - each host has its own
IPV6_ONLY = (Family.IPV6,)


def ask(host: Host, *words: str) -> str:
    """What a command on a host prints, which is to end well."""
    done = host.run(words)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def read_line(process: "subprocess.Popen[bytes]") -> str:
    """The next line that a started command prints."""
    assert process.stdout is not None
    return process.stdout.readline().decode().strip()


def test_hosts_reach_each_other_by_name_with_ssh(lab: BuildLab) -> None:
    hosts = lab(3)
    for here in (*hosts, hosts.launcher):
        for there in hosts:
            assert ask(here, *LOGIN, there.name, "hostname") == there.name


@pytest.mark.parametrize("family", Family)
def test_hosts_have_addresses_of_both_families(lab: BuildLab, family: Family) -> None:
    hosts = lab(1)
    assert ask(hosts.launcher, *LOGIN, hosts["host1"].network.address(family), "hostname") == "host1"


def test_a_host_of_one_family_has_no_address_of_the_other(lab: BuildLab) -> None:
    hosts = lab([HostPlan("a", families=IPV6_ONLY), HostPlan("b", families=IPV6_ONLY)])
    assert ask(hosts["a"], *LOGIN, "b", "hostname") == "b"
    assert "inet " not in ask(hosts["a"], "ip", "address", "show", "eth0")
    with pytest.raises(LookupError, match="IPv4"):
        hosts["a"].network.address()


def test_each_host_has_a_tmp_and_a_home_of_its_own_and_sees_what_is_shared(lab: BuildLab, tmp_path: Path) -> None:
    hosts = lab(2, shared=[tmp_path])
    (hosts.shared / "note").write_text("for all", encoding="utf-8")
    (tmp_path / "note").write_text("for all", encoding="utf-8")
    mark = f"/tmp/{hosts.folder.name}-own"  # noqa: S108 - the host's own
    ask(hosts["host1"], "touch", mark, f"{SHARED_MEMORY}/{hosts.folder.name}")
    assert not Path(mark).exists()
    assert hosts["host2"].run(["ls", mark]).returncode != 0
    assert hosts.folder.name not in ask(hosts["host2"], "ls", SHARED_MEMORY)
    for host in hosts:
        assert ask(host, "cat", str(hosts.shared / "note"), str(tmp_path / "note")) == "for allfor all"
        assert ask(hosts.launcher, *LOGIN, host.name, "pwd") == str(host.home)


def test_a_host_runs_the_python_of_the_tests(lab: BuildLab) -> None:
    hosts = lab(1)
    program = "import sys; print(sys.executable)"
    assert Path(ask(hosts["host1"], "python", "-c", program)).samefile(sys.executable)
    assert ask(hosts.launcher, *LOGIN, "host1", f"{sys.executable} -c '{program}'") == sys.executable


def test_a_host_may_find_its_own_name_on_loopback(lab: BuildLab) -> None:
    hosts = lab([HostPlan("a", has_loopback_name=True), HostPlan("b")])
    assert ask(hosts["a"], "getent", "hosts", "a").startswith("127.0.1.1")
    assert "127.0.1.1" not in ask(hosts["b"], "getent", "ahosts", "a")


def test_an_unknown_name_is_unknown_at_once(lab: BuildLab) -> None:
    done = lab(1).launcher.run([*LOGIN, "nobody", "true"])
    assert "Name or service not known" in done.stderr


def test_a_started_command_is_its_own_process_with_the_hosts_pid(lab: BuildLab) -> None:
    host = lab(1)["host1"]
    process = host.start(["bash", "-c", "trap 'exit 7' INT; echo $$; while true; do read -t 1 <> <(:); done"])
    inside = int(read_line(process))
    found = [one for one in host.processes() if one.pid == process.pid]
    assert [one.pid_on_host for one in found] == [inside]
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 7


def test_a_command_that_does_not_end_is_killed_with_what_it_started(lab: BuildLab) -> None:
    host = lab(1)["host1"]
    with pytest.raises(AssertionError, match=r"(?s)not ended on host1 within 0.5 s.*stdout\nbegun"):
        host.run(["bash", "-c", "echo begun; sleep 60 & wait"], limit_seconds=0.5)
    assert host.processes() == ()


def test_all_processes_of_a_host_are_found_wherever_they_went(lab: BuildLab) -> None:
    hosts = lab(2)
    daemon = "setsid setsid env -i sleep 61 >/dev/null 2>&1 </dev/null & exit 0"
    ask(hosts.launcher, *LOGIN, "host1", daemon)
    deadline = time.monotonic() + 10
    while True:  # it becomes what it is to be in several steps, and the login ends meanwhile
        left = [one for one in hosts["host1"].processes() if one not in hosts["host1"].sshd.processes()]
        if left and all("sleep 61" in str(one) for one in left):
            break
        assert time.monotonic() < deadline, left
        time.sleep(0.02)
    assert hosts["host2"].processes() == ()


def test_several_labs_live_side_by_side(lab: BuildLab) -> None:
    one, other = lab(1), lab(1)
    ask(one["host1"], "touch", "/tmp/one")  # noqa: S108 - the host's own
    assert ask(one.launcher, *LOGIN, "host1", "ls /tmp/one")
    assert other.launcher.run([*KNOCK, "host1", "ls /tmp/one"]).returncode != 0


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


def test_a_destroyed_host_is_gone_without_a_word(lab: BuildLab) -> None:
    hosts = lab(2)
    doomed = hosts["host1"]
    session = hosts.launcher.start([*LOGIN, "host1", "echo begun; sleep 60"])
    assert read_line(session) == "begun"
    local = doomed.start(["sleep", "60"])
    pids = [one.pid for one in (*doomed.processes(), *doomed.sshd.processes())]
    doomed.destroy()
    assert not doomed.is_up
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids if pid != local.pid)
    assert local.wait(0) == -signal.SIGKILL
    assert doomed.processes() == ()
    assert hosts.launcher.run([*KNOCK, "host1", "true"]).returncode != 0
    assert session.poll() is None, "the other side has heard of it"
    assert ask(hosts.launcher, *LOGIN, "host2", "hostname") == "host2"


def test_a_destroyed_host_comes_back_empty(lab: BuildLab) -> None:
    hosts = lab(2)
    ask(hosts["host1"], "touch", "/tmp/mark")  # noqa: S108 - the host's own
    again = hosts.reboot("host1", HostPlan("host1", sshd=SshdPlan(port=2222)))
    assert ask(hosts.launcher, *LOGIN, "-p", "2222", "host1", "hostname; ls /tmp/mark || true") == "host1"
    assert hosts["host1"] is again
    assert ask(again, *LOGIN, "host2", "hostname") == "host2"


def test_the_ssh_server_is_as_planned(lab: BuildLab) -> None:
    closed, busy = SshdPlan(accepts_key=False), SshdPlan(settings={"MaxStartups": "1:100:1"})
    hosts = lab([HostPlan("a", sshd=closed), HostPlan("b", sshd=busy), HostPlan("c", sshd=None)])
    assert "Permission denied (publickey)" in hosts.launcher.run([*KNOCK, "a", "true"]).stderr
    hosts["a"].sshd.restart(SshdPlan())
    assert ask(hosts.launcher, *LOGIN, "a", "hostname") == "a"
    waiting = hosts.launcher.start(["python", "-c", HOLD.format(hosts["b"].network.address())])
    assert read_line(waiting).startswith("SSH-2.0")
    assert hosts.launcher.run([*KNOCK, "b", "true"]).returncode != 0
    assert "Connection refused" in hosts.launcher.run([*LOGIN, "c", "true"]).stderr


def test_a_user_may_be_named_and_a_host_key_may_change(lab: BuildLab) -> None:
    hosts = lab(1)
    assert ask(hosts.launcher, *LOGIN, "trainer@host1", "echo $USER") == "trainer"
    hosts["host1"].sshd.renew_key()
    assert "HOST IDENTIFICATION HAS CHANGED" in hosts.launcher.run([*LOGIN, "host1", "true"]).stderr


def test_a_session_may_have_a_terminal(lab: BuildLab) -> None:
    assert ask(lab(1).launcher, *LOGIN, "-tt", "host1", "tty").startswith("/dev/pts/")


# Holds a connection that has not logged in.
HOLD = (
    "import socket, time; s = socket.create_connection(('{}', 22)); print(s.recv(99).decode(), flush=True); s.recv(1)"
)


def test_a_killed_ssh_server_takes_its_sessions_with_it_or_not(lab: BuildLab) -> None:
    hosts = lab(1)
    sshd = hosts["host1"].sshd
    sessions = [hosts.launcher.start([*LOGIN, "host1", "echo begun; sleep 60"]) for _ in range(2)]
    assert [read_line(session) for session in sessions] == ["begun", "begun"]
    sshd.restart()
    assert [session.poll() for session in sessions] == [None, None]
    sshd.kill_sessions()
    assert [session.wait(10) for session in sessions] == [255, 255]
    assert ask(hosts.launcher, *LOGIN, "host1", "hostname") == "host1"
    sshd.kill()
    assert "Connection refused" in hosts.launcher.run([*LOGIN, "host1", "true"]).stderr
    assert [one.command for one in hosts["host1"].processes() if one.program == "sleep"] == [("sleep", "60")] * 2
    sshd.start()
    assert ask(hosts.launcher, *LOGIN, "host1", "hostname") == "host1"
