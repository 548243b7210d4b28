"""Agents behind commands: a shell in the place of srun and of an ssh, and programs that are no agents."""

import os
import shlex
import signal
import sys
from pathlib import Path

import pytest

from hvdrun.hosts.reach import Transports, fill_words
from hvdrun.options.flags import parse
from hvdrun.options.request import make_job
from hvdrun.spec.jobspec import JobSpec
from hvdrun.spec.remote import Allocation, Remote
from hvdrun.transport import child
from hvdrun.transport.child import CommandTransport
from hvdrun.transport.start import RemoteAgent, last_words
from hvdrun.transport.transport_errors import AgentStartError, NoTunnelError, PythonMissingError
from rendezvous.core.model import Host
from rendezvous.wire.orders import Hello
from tests.descriptors import list_descriptors, list_settled_descriptors
from tests.hvdrun.agent.sleepers import is_alive
from tests.hvdrun.specs import build_spec, with_fields
from tests.hvdrun.transport.ssh.agents import write_agent, write_script, write_silent
from tests.waiting import happen, in_loop

RSH = '#!/bin/sh\necho "$1" "$HVDRUN_TEST" >&2; echo noise; shift; exec sh -c "$*"\n'


def make(agent: RemoteAgent, *words: str, start_seconds: float = 60.0) -> CommandTransport:
    return CommandTransport("a", (*words, "sh", "-c", agent.command()), agent, start_seconds=start_seconds)


def make_spec(host: str, **changes: object) -> JobSpec:
    side = Remote(frozenset({host}), ("true",), sys.executable)
    return with_fields(build_spec(("true",), 1, (Host(host, 1),), Path("/"), remote=side), **changes)


@pytest.mark.parametrize(
    ("words", "filled"),
    [
        ("blaunch", "blaunch me@h C"),
        ("ssh -q", "ssh -q me@h C"),
        ("gcloud ssh {host} --command={command}", "gcloud ssh me@h --command=C"),
        ("run --on={host} --", "run --on=me@h -- C"),
        ("run {command} --at", "run C --at me@h"),
    ],
)
def test_host_and_command_stand_where_the_words_say_or_behind_them(words: str, filled: str) -> None:
    assert fill_words(words.split(), "me@h", "C") == tuple(filled.split())


@pytest.mark.parametrize(("way", "found"), [("./way -q", "/work/way -q"), ("way ./q", "way ./q")])
def test_a_path_of_rsh_counts_from_the_folder_of_hvdrun(monkeypatch: pytest.MonkeyPatch, way: str, found: str) -> None:
    monkeypatch.setattr("hvdrun.options.kinds.find_directory", lambda: Path("/work"))
    typed, command = parse(["-np", "1", "-H", "far", "--rsh", way, "true"])
    assert shlex.join(make_job(typed, command, {}, lambda _: 1).remote.rsh) == found


@in_loop
async def test_rsh_gets_the_host_and_a_command_for_a_shell(tmp_path: Path) -> None:
    program = write_script(tmp_path / "rsh", RSH).python
    transport = Transports().make("far", make_spec("far", rsh=(program,), users={"far": "me"}))
    try:
        await transport.open()
        assert isinstance(await anext(transport.messages()), Hello)
        assert isinstance(transport, CommandTransport)
        assert transport._process is not None
        assert transport._stderr_tail.startswith(b"me@far")
    finally:
        await transport.close()
    assert transport._process.returncode == 1  # its launcher disappeared


@in_loop
async def test_a_step_has_no_variables_of_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_NTASKS", "8")
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    step = write_script(tmp_path / "srun", '#!/bin/sh\necho "$SLURM_JOB_ID-$SLURM_NTASKS-" >&2; exit 3\n').python
    allocation = Allocation("Slurm job 17", (Host("n1", 1),), steps={"n1": (step, "--nodes=1")})
    transport = Transports().make("n1", make_spec("n1", allocation=allocation))
    with pytest.raises(AgentStartError, match=r"'n1' did not start \(exit code 3\): 17--"):
        await transport.open()
    await transport.close()


@in_loop
async def test_a_prefix_runs_the_agent_here_and_needs_no_tunnel(tmp_path: Path) -> None:
    program = '#!/bin/sh\necho pulling; cat "$1" >&2; shift; exec "$@"\n'
    write_script(tmp_path / "apptainer", program)
    (tmp_path / "an image.sif").write_text("up")
    spec = make_spec("localhost", directory=tmp_path, agent_prefix=("./apptainer", "an image.sif"))
    transport = Transports().make("localhost", with_fields(spec, here=frozenset({"localhost"})))
    try:
        await transport.open()
        assert isinstance(await anext(transport.messages()), Hello)
        assert await transport.tunnel(7) == 7
    finally:
        await transport.close()


@pytest.mark.parametrize(
    ("program", "error", "said"),
    [
        ("echo broken >&2; exit 3", AgentStartError, r"'a' did not start \(exit code 3\): broken"),
        ("kill -9 $$", AgentStartError, "'a' did not start"),
        (
            'exec "$@" </dev/null',
            AgentStartError,
            r"\(exit code 0: its command must pass standard input on\)\. Check .* with way\.$",
        ),
        ("echo only words", AgentStartError, "only words"),
        ('exec sh -c "$3"', PythonMissingError, "'/no/python' on the host 'a'"),
    ],
)
@in_loop
async def test_a_command_that_starts_no_agent_is_reported(
    tmp_path: Path, program: str, error: type[Exception], said: str
) -> None:
    way = write_script(tmp_path / "way", f"#!/bin/sh\n{program}\n").python
    transport = make(RemoteAgent("/no/python"), way)
    with pytest.raises(error, match=said):
        await transport.open()
    await transport.close()


@in_loop
async def test_a_missing_command_is_reported() -> None:
    with pytest.raises(
        AgentStartError, match=r"\(srun cannot be run\): No such file .* Install srun on this machine, or .*--rsh\.$"
    ):
        await make(RemoteAgent("python3"), "/no/srun").open()


@in_loop
async def test_a_command_that_stays_silent_is_given_up_and_leaves_nothing(tmp_path: Path) -> None:
    transport = make(write_silent(tmp_path), start_seconds=0.5)
    with pytest.raises(AgentStartError, match=r"no sign of it within 0.5 s"):
        await transport.open()
    assert transport._process is not None
    await transport.close()
    assert transport._process.returncode is not None


@in_loop
async def test_a_chatty_command_holds_nothing_up(tmp_path: Path) -> None:
    """The command fills standard error, and prints much before the agent does."""
    program = 'head -c 3000000 /dev/zero >&2; head -c 3000000 /dev/zero; exec "$@"\n'
    way = write_script(tmp_path / "way", f"#!/bin/sh\n{program}").python
    transport = make(RemoteAgent(sys.executable), way)
    try:
        await transport.open()
        assert isinstance(await anext(transport.messages()), Hello)
    finally:
        await transport.close()


@in_loop
async def test_a_command_that_ignores_sigterm_is_killed_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "CLOSE_SECONDS", 0.2)
    monkeypatch.setattr(child, "_TERMINATE_SECONDS", 0.2)
    agent = write_agent(
        tmp_path,
        """
        import signal, subprocess
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = subprocess.Popen(["sleep", "600"])
        sys.stderr.write(f"{child.pid}\\n"); sys.stderr.flush()
        out.write(struct.pack(">I", 9) + b"x"); out.flush()
        time.sleep(600)
        """,
    )
    transport = make(agent)
    await transport.open()
    assert transport._process is not None
    await transport.close()
    assert transport._process.returncode == -signal.SIGKILL
    started = int(last_words(transport._stderr_tail))
    await happen(lambda: not is_alive(started), "its end")


@in_loop
async def test_a_process_in_another_session_that_keeps_the_output_open_does_not_hold_the_close_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "CLOSE_SECONDS", 0.2)
    monkeypatch.setattr(child, "_TERMINATE_SECONDS", 0.2)
    prefix = f"setsid sleep 600 & echo $! >{tmp_path}/pid"
    transport = make(RemoteAgent(sys.executable, prefix))
    await transport.open()
    await transport.close()
    os.kill(int((tmp_path / "pid").read_text(encoding="utf-8")), signal.SIGKILL)


@in_loop
async def test_another_machine_has_no_tunnel(tmp_path: Path) -> None:
    with pytest.raises(NoTunnelError, match="'a' reaches no address of this machine, and srun has no tunnel"):
        await make(RemoteAgent("python3"), str(tmp_path / "srun")).tunnel(7)


@in_loop
async def test_of_a_long_standard_error_only_the_end_is_kept(tmp_path: Path) -> None:
    before = list_settled_descriptors()
    noise = "yes noise | head -c 6000000 >&2; echo last >&2"
    way = write_script(tmp_path / "way", f"#!/bin/sh\n{noise}; exit 3\n").python
    transport = make(RemoteAgent("python3"), way)
    with pytest.raises(AgentStartError, match=r"\(exit code 3\): last"):
        await transport.open()
    assert all(os.fstat(descriptor).st_size < 1_000_000 for descriptor in list_descriptors() - before)
    await transport.close()
    assert transport._stderr_tail.endswith(b"noise\nlast\n")
    assert len(transport._stderr_tail) < 100_000
