"""The user's script: what it may print, how it may fail, and that nothing of it is left."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from hvdrun.discovery_script import (
    DiscoveryFailedError,
    DiscoveryImpossibleError,
    DiscoveryScript,
    find_now,
    open_script,
)
from hvdrun.elasticity import Elasticity
from hvdrun.errors import UsageError
from hvdrun.hosts import HostList
from hvdrun.jobspec import JobSpec
from hvdrun.script_guard import ScriptGuard
from rendezvous.core.model import Host

LIMIT_SECONDS = 10.0


def ask(command: str, folder: Path, *, slots_per_host: int = 1, limit_seconds: float = LIMIT_SECONDS) -> HostList:
    with ScriptGuard(os.environ) as guard:
        script = DiscoveryScript(command, slots_per_host, folder, guard, limit_seconds=limit_seconds)
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
    assert str(failure) == "exit code 3: no cluster today"
    assert not failure.is_hopeless
    assert str(fail("kill -9 $$", tmp_path)) == "signal 9"


def test_what_differs_in_words_alone_is_a_failure_of_one_kind(tmp_path: Path) -> None:
    ways = {
        "exit code 3": ("echo 12:00:01 no cluster >&2; exit 3", "exit 3"),
        "nonsense": ("printf 'a\\377'", "printf 'b\\212'", "echo a:x", "echo '<html>'", "head -c 2000000 /dev/zero"),
        "signal 9": ("kill -9 $$",),
        "none": ("true",),
    }
    for kind, commands in ways.items():
        assert [fail(command, tmp_path).kind for command in commands] == [kind] * len(commands)


@pytest.mark.parametrize("command", ["./nowhere", "./forbidden"])
def test_what_the_shell_cannot_start_is_hopeless(command: str, tmp_path: Path) -> None:
    (tmp_path / "forbidden").touch(0o644)
    failure = fail(command, tmp_path)
    assert failure.is_hopeless
    error = DiscoveryScript(command, 1, tmp_path, ScriptGuard({})).refuse(failure)
    assert isinstance(error, UsageError)
    assert command in str(error)


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("true", "it names no host"),
        ("echo '# nothing'", "it names no host"),
        ("echo a:x", "'a:x' is no host"),
        ("echo '<html>error'", "'<html>error' is no host"),
        ("echo a; echo a b", "'a b' is no host"),
        ("printf 'a\\377'", "0xff"),
        ("yes aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa | head -c 20000000", "bytes"),
    ],
)
def test_nonsense_is_no_answer(command: str, reason: str, tmp_path: Path) -> None:
    assert reason in str(fail(command, tmp_path))


def test_a_script_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    command = "setsid sleep 600 & echo $! > one; sleep 601 & echo $! > two; echo $$ > three; yes"
    assert "longer than 0.5 s" in str(fail(command, tmp_path, limit_seconds=0.5))
    for name in ("one", "two", "three"):
        assert is_gone(int((tmp_path / name).read_text()))


def test_what_a_script_leaves_in_the_background_is_ended(tmp_path: Path) -> None:
    assert ask("sleep 600 >/dev/null 2>&1 & echo $! > pid; echo a", tmp_path).hosts == (Host("a", 1),)
    assert is_gone(int((tmp_path / "pid").read_text()))


def test_a_script_is_ended_when_nobody_waits_for_it_any_more(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "up")

    async def scenario(script: DiscoveryScript) -> int:
        asking = asyncio.create_task(script.ask())
        pid = int(await asyncio.to_thread((tmp_path / "up").read_text))
        asking.cancel()
        await asyncio.wait({asking})
        assert asking.cancelled()
        return pid

    with ScriptGuard(os.environ) as guard:
        script = DiscoveryScript("echo $$ > up; sleep 600", 1, tmp_path, guard)
        assert is_gone(asyncio.run(asyncio.wait_for(scenario(script), LIMIT_SECONDS)))


def make_spec(script: str | None) -> JobSpec:
    hosts = () if script else (Host("a", 1),)
    return JobSpec(("true",), 1, hosts, Path("/"), Elasticity(1, script=script, slots_per_host=2))


def test_a_job_s_script_runs_where_hvdrun_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hosts").write_text("a\n")
    assert find_now(make_spec("cat hosts")).hosts == (Host("a", 2),)
    with pytest.raises(DiscoveryImpossibleError, match=r"'exit 3'.*exit code 3"):
        find_now(make_spec("exit 3"))


def test_a_job_with_fixed_hosts_has_no_script() -> None:
    with pytest.raises(UsageError, match="--host-discovery-script"), open_script(make_spec(None)):
        pass


def is_gone(pid: int) -> bool:
    """Ended, or about to: a killed process may still wait for whoever reaps it."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state in "ZX" or _is_being_killed(pid)


def _is_being_killed(pid: int) -> bool:
    pending = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigPnd")]
    return bool(int(pending[0].split()[1], 16) & 1 << (signal.SIGKILL - 1))
