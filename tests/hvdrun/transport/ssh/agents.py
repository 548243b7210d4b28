"""Agents behind a real OpenSSH server: hvdrun's own, and programs in their place."""

import sys
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil

from hvdrun.transport.ssh.target import Target
from hvdrun.transport.ssh.transport import SshTransport
from hvdrun.transport.start import RemoteAgent
from hvdrun.transport.transport import START_SECONDS
from tests.hvdrun.transport.ssh.servers import Home, SshServer


@asynccontextmanager
async def opened(
    home: Home, server: SshServer, agent: RemoteAgent | None = None, start_seconds: float = START_SECONDS
) -> AsyncIterator[SshTransport]:
    """A transport to an agent that has started."""
    transport = make_transport(home.target(server), agent, start_seconds)
    try:
        await transport.open()
        yield transport
    finally:
        await transport.close()


def make_transport(
    target: Target, agent: RemoteAgent | None = None, start_seconds: float = START_SECONDS
) -> SshTransport:
    """A transport to an agent that has not started."""
    return SshTransport(target.host, lambda: target, agent or RemoteAgent(sys.executable), start_seconds=start_seconds)


def write_script(path: Path, text: str) -> RemoteAgent:
    """A program in Python's place."""
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
    return RemoteAgent(str(path))


def write_agent(folder: Path, program: str) -> RemoteAgent:
    """A Python program in an agent's place; `out` is its standard output, for bytes."""
    preamble = f"#!{sys.executable} -S\nimport os, sys, time, struct\nout = sys.stdout.buffer\n"
    return write_script(folder / "agent", preamble + textwrap.dedent(program))


def write_silent(folder: Path) -> RemoteAgent:
    """A program that says nothing, and ends with its input."""
    return write_script(folder / "silent", "#!/bin/sh\necho waiting >&2\nexec cat >/dev/null\n")


def find_session(server: SshServer) -> psutil.Process:
    """The server's process that has its one connection; newer releases have another one above it."""
    (session,) = server.sessions()
    return [session, *(child for child in session.children(recursive=True) if child.name().startswith("sshd"))][-1]
