"""Agents behind a real OpenSSH server: hvdrun's own, and programs in their place."""

import asyncio
import contextlib
import os
import sys
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil

from hvdrun.transport.ssh.start import RemoteAgent
from hvdrun.transport.ssh.transport import Limits, SshTransport
from rendezvous.authority import Authority
from rendezvous.core.effects import Launch
from rendezvous.core.model import Assignment, Slot, Worker
from rendezvous.orders import Begin, Output, OutputStream, Telling
from tests.hvdrun.agent.jobs import JOB
from tests.hvdrun.transport.ssh.servers import Home, SshServer

LIMIT_SECONDS = 30.0
WORKER = Worker(Slot("a", 0), 1)
LAUNCH = Launch(WORKER, Assignment(0, 1, 0, 1, 0, 1), "placed")


def make_begin(directory: Path, script: str) -> Begin:
    return Begin(
        job=JOB,
        host="a",
        server="127.0.0.1:1",
        credential=Authority(JOB).issue_agent("a"),
        command=("sh", "-c", script),
        directory=str(directory),
        environment={b"PATH": os.environb[b"PATH"]},
        lease_seconds=30,
        start_timeout_seconds=30,
        address="127.0.0.1",
    )


@asynccontextmanager
async def opened(
    home: Home, server: SshServer, agent: RemoteAgent | None = None, limits: Limits | None = None
) -> AsyncIterator[SshTransport]:
    transport = SshTransport(home.target(server), agent or RemoteAgent(sys.executable), limits=limits)
    try:
        async with asyncio.timeout(LIMIT_SECONDS):
            await transport.open()
            yield transport
    finally:
        await transport.close()


def write_agent(folder: Path, program: str) -> RemoteAgent:
    """A program in an agent's place; it says one byte, as the first of a frame, before it goes on."""
    path = folder / "agent"
    preamble = f"#!{sys.executable} -S\nimport os, sys, time, struct\nout = sys.stdout.buffer\n"
    path.write_text(preamble + textwrap.dedent(program), encoding="utf-8")
    path.chmod(0o755)
    return RemoteAgent(str(path))


def write_silent(folder: Path) -> Path:
    """A program that says nothing, and ends with its input."""
    path = folder / "silent"
    path.write_text("#!/bin/sh\necho waiting >&2\nexec cat >/dev/null\n", encoding="utf-8")
    path.chmod(0o755)
    return path


async def read_line(tellings: AsyncIterator[Telling]) -> bytes:
    """The first line of the worker's standard output."""
    data = b""
    async for telling in tellings:
        if isinstance(telling, Output) and telling.stream is OutputStream.STDOUT:
            data += telling.data
        if data.endswith(b"\n"):
            break
    return data


def list_names(server: SshServer) -> list[str]:
    """The names of the server's processes."""
    names = []
    for process in psutil.Process(server.process.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            names.append(process.name())
    return names


def find_session(server: SshServer) -> psutil.Process:
    """The server's process for its one connection."""
    (session,) = psutil.Process(server.process.pid).children()
    return session
