"""Detached jobs, and the programs that find them, as a test uses them."""

import re
import sys
from contextlib import suppress

from hvdrun.jobs.folder import JobFolder
from tests.system.launcher import LIMIT_SECONDS, Finished, Launcher, Running
from tests.system.roles import kill


def detach(hvdrun: Launcher, *words: str, environment: dict[str, str] | None = None) -> str:
    """Start a job; its name."""
    started = hvdrun("--detach", *words, environment=environment)
    assert (started.returncode, started.stderr) == (0, ""), started
    assert re.fullmatch("[0-9a-f]{14}\n|[0-9a-f]{16}\n", started.stdout)
    return started.stdout.strip()


def ask(hvdrun: Launcher, *words: str) -> Finished:
    """Run `hvdrun ps` or another program about jobs."""
    return hvdrun.start_words([sys.executable, "-m", "hvdrun", *words]).wait()


def follow(hvdrun: Launcher, job: str) -> Running:
    """Run `hvdrun logs --follow`: one process reads what comes, where each look would start another one."""
    return hvdrun.start_words([sys.executable, "-m", "hvdrun", "logs", "--follow", job])


def wait_for_words(hvdrun: Launcher, job: str, words: str) -> None:
    """A running job comes to say this on its stderr."""
    following = follow(hvdrun, job)
    following.stderr.wait_for(re.escape(words), LIMIT_SECONDS)
    following.close()


def find_job(hvdrun: Launcher) -> str:
    """The name of the only job that has been started."""
    (folder,) = hvdrun.state.glob("hvdrun/[0-9a-f]*")
    return folder.name


def find_guardian(hvdrun: Launcher) -> int | None:
    """The pid of the guardian of the only job; None where it has ended."""
    folders = list(hvdrun.state.glob("hvdrun/[0-9a-f]*"))
    return JobFolder(folders[0]).find_launcher() if folders else None


def find_server(hvdrun: Launcher) -> int | None:
    """The pid of the server of the only job; None where there is none now."""
    guardian = find_guardian(hvdrun)
    servers = [process.pid for process in hvdrun.processes() if guardian and process.parent == guardian]
    return servers[0] if servers else None


def kill_launcher(hvdrun: Launcher) -> None:
    """Kill -9 of the guardian of the only job, which would start another server, and then of its server."""
    server = find_server(hvdrun)
    for pid in (find_guardian(hvdrun), server):
        assert pid is not None
        kill(pid)


def kill_server(hvdrun: Launcher) -> int | None:
    """Kill -9 of the server of the only job, if there is one."""
    server = find_server(hvdrun)
    if server is not None:
        with suppress(ProcessLookupError):  # it has ended meanwhile
            kill(server)
    return server
