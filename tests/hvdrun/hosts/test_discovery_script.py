"""The user's script: what it may print, how it may fail, and that nothing is left of it, or of a killed hvdrun's."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from hvdrun.errors import UsageError
from hvdrun.hosts import discovery_script
from hvdrun.hosts.discovery_script import (
    DiscoveryFailedError,
    DiscoveryImpossibleError,
    DiscoveryScript,
    find_now,
    open_script,
)
from hvdrun.processes import processes
from hvdrun.processes.watchdog import ScriptWatchdog
from hvdrun.spec.hosts import HostList
from hvdrun.spec.jobspec import JobSpec
from hvdrun.spec.limits import Elasticity
from rendezvous.bootstrap import INCARNATION, JOB, SLOT
from rendezvous.core.model import Host
from tests.hvdrun.agent.sleepers import is_alive, sleeping
from tests.hvdrun.specs import build_spec
from tests.waiting import LIMIT_SECONDS, in_loop, wait_until


def ask(command: str, folder: Path, *, slots_per_host: int = 1, limit_seconds: float = LIMIT_SECONDS) -> HostList:
    with ScriptWatchdog(os.environ) as watchdog:
        script = DiscoveryScript(command, slots_per_host, folder, watchdog, limit_seconds=limit_seconds)
        return asyncio.run(asyncio.wait_for(script.ask(), 2 * LIMIT_SECONDS))


def fail(command: str, folder: Path, *, limit_seconds: float = LIMIT_SECONDS) -> DiscoveryFailedError:
    with pytest.raises(DiscoveryFailedError) as caught:
        ask(command, folder, limit_seconds=limit_seconds)
    return caught.value


def test_hosts_come_in_their_order_from_a_command_of_the_shell(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("# ours\nb:2\n\n  me@a  # old\nb\n[::1]\n")
    found = ask("cat hosts | cat", tmp_path, slots_per_host=3)
    assert found == HostList((Host("b", 3), Host("a", 3), Host("::1", 3)), {"a": "me"})


def test_a_script_that_fails_is_quoted(tmp_path: Path) -> None:
    failure = fail("echo a:1; echo first >&2; echo 'no cluster  today' >&2; exit 3", tmp_path)
    assert (str(failure), failure.kind) == ("exit code 3: no cluster today", "exit code 3")
    assert not failure.is_hopeless


@pytest.mark.parametrize(
    ("command", "reason", "kind"),
    [
        ("exit 3", "exit code 3", "exit code 3"),
        ("kill -9 $$", "signal 9", "signal 9"),
        ("true", "it names no host that has a slot", "none"),
        ("echo '# nothing'; echo a:0", "it names no host that has a slot", "none"),
        ("echo a:x", "'a:x' is no host", "nonsense"),
        ("printf 'a\\377'", "0xff", "nonsense"),
        ("head -c 20000000 /dev/zero", "bytes", "nonsense"),
    ],
)
def test_failures_that_differ_in_words_are_of_one_kind(command: str, reason: str, kind: str, tmp_path: Path) -> None:
    failure = fail(command, tmp_path)
    assert reason in str(failure)
    assert failure.kind == kind


@pytest.mark.parametrize("command", ["./nowhere", "./forbidden"])
def test_a_script_that_the_shell_cannot_start_is_hopeless(command: str, tmp_path: Path) -> None:
    (tmp_path / "forbidden").touch(0o644)
    failure = fail(command, tmp_path)
    assert failure.is_hopeless
    error = DiscoveryScript(command, 1, tmp_path, ScriptWatchdog({})).refuse(failure)
    assert isinstance(error, UsageError)
    assert command in str(error)


def test_a_script_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    command = "setsid sleep 600 & echo $! > one; sleep 601 & echo $! > two; echo $$ > three; yes"
    last = tmp_path / "three"
    for limit_seconds in (0.5, 5.0, 50.0):  # a busy machine may need longer to start them all
        assert f"longer than {limit_seconds:g} s" in str(fail(command, tmp_path, limit_seconds=limit_seconds))
        if last.exists() and last.read_text():
            break
    pids = [int((tmp_path / name).read_text()) for name in ("one", "two", "three")]
    wait_until(lambda: not any(map(is_alive, pids)))


@pytest.mark.parametrize("output", ["", ">/dev/null 2>&1"])
def test_a_background_process_of_a_script_is_ended_and_delays_no_answer(output: str, tmp_path: Path) -> None:
    assert ask(f"sleep 600 {output} & echo $! > pid; echo a", tmp_path).hosts == (Host("a", 1),)
    wait_until(lambda: not is_alive(int((tmp_path / "pid").read_text())))


def test_a_script_s_process_in_another_session_is_ended_and_delays_no_answer(tmp_path: Path) -> None:
    command = "setsid -f sh -c 'echo $$ >pid; exec sleep 600'; until [ -s pid ]; do sleep 0.01; done; echo a:1"
    assert ask(command, tmp_path).hosts == (Host("a", 1),)
    wait_until(lambda: not is_alive(int((tmp_path / "pid").read_text())))


def test_an_answer_is_read_to_its_end(tmp_path: Path) -> None:
    found = ask("sleep 600 & seq --format=h%g 20000", tmp_path)
    assert [host.name for host in found.hosts] == [f"h{number}" for number in range(1, 20001)]


def test_a_script_is_ended_when_no_caller_waits_for_it_any_more(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "up")

    async def scenario(script: DiscoveryScript) -> int:
        asking = asyncio.create_task(script.ask())
        pid = int(await asyncio.to_thread((tmp_path / "up").read_text))
        asking.cancel()
        await asyncio.wait({asking})
        assert asking.cancelled()
        return pid

    with ScriptWatchdog(os.environ) as watchdog:
        script = DiscoveryScript("echo $$ > up; sleep 600", 1, tmp_path, watchdog)
        pid = asyncio.run(asyncio.wait_for(scenario(script), LIMIT_SECONDS))
        wait_until(lambda: not is_alive(pid))


def test_the_heir_of_a_script_s_number_is_not_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    look = processes.look
    monkeypatch.setattr(processes, "look", lambda pid: look(pid) or look(os.getpid()))
    monkeypatch.setattr(os, "killpg", lambda *_: pytest.fail("a process was killed"))
    assert ask("echo a", tmp_path).hosts == (Host("a", 1),)


def make_spec(script: str | None) -> JobSpec:
    hosts = () if script else (Host("a", 1),)
    return build_spec(("true",), 1, hosts, Path("/"), Elasticity(1, script=script, slots_per_host=2))


def test_a_job_s_script_runs_where_hvdrun_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hosts").write_text("a\n")
    assert find_now(make_spec("cat hosts")).hosts == (Host("a", 2),)
    with pytest.raises(DiscoveryImpossibleError, match=r"'exit 3'.*exit code 3"):
        find_now(make_spec("exit 3"))


def test_a_job_with_fixed_hosts_has_no_script() -> None:
    with pytest.raises(UsageError, match="--host-discovery-script"), open_script(make_spec(None)):
        pass


def find_watchdog(watchdog: ScriptWatchdog) -> int:
    assert watchdog.pid is not None
    return watchdog.pid


def test_a_watchdog_lives_inside_its_block_and_kills_no_script_at_the_end() -> None:
    with sleeping() as run:
        with ScriptWatchdog({}) as watchdog:
            pid = find_watchdog(watchdog)
            watchdog.add(run.pid)
        assert processes.look(pid) is None
        assert watchdog.pid is None
        assert is_alive(run.pid)


def test_a_script_that_was_killed_or_stopped_is_replaced() -> None:
    with sleeping() as run, ScriptWatchdog({}) as watchdog:
        first = find_watchdog(watchdog)
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: not is_alive(first))
        watchdog.remove(run.pid)  # which is not heard
        watchdog.add(run.pid)
        second = find_watchdog(watchdog)
        assert second != first
        assert processes.look(first) is None
        os.kill(second, signal.SIGSTOP)
        for number in range(10_000):  # more than a pipe holds
            watchdog.remove(2**22 + number)
        assert is_alive(run.pid)
    assert processes.look(second) is None


def test_a_run_belongs_to_no_worker_but_to_the_one_that_hvdrun_runs_in() -> None:
    alone = ScriptWatchdog({"PATH": "/bin"}).environment
    assert set(alone) == {"PATH", JOB}
    inner = ScriptWatchdog({JOB: "outer", SLOT: "a:0", INCARNATION: "2"}).environment
    origin = processes.name_origin(inner)
    assert origin is not None
    assert origin.startswith("outer/a/0.2/")


@in_loop
async def test_output_just_before_the_end_of_a_script_is_read() -> None:
    """The loop may hear of the end first."""
    with discovery_script._Output(limit=100_000) as output:
        os.write(output.writing, b"a:1\n" * 10_000)
        assert output.read_all() == b"a:1\n" * 10_000
