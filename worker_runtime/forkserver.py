"""Imports torch once per host, and forks workers that cannot be told from executed ones.

The agent starts it with the interpreter that the job's command names, in the job's own environment, as
`python -c BOOT`; see `hvdrun/agent/prefork.py`, which holds the other end of its socket. It only imports: it runs no
torch operation, opens no device and no channel, and has one thread, since what a second thread holds at the moment of
a fork is held in the child for ever. Each worker is forked twice, so that it becomes a child of the agent, which is a
subreaper.

What a fork cannot keep apart is set right in the child: the session, descriptors, environment, arguments, the seed of
NumPy's global generator (Python's own is reseeded by itself), the number of threads, multiprocessing's key.
"""

import importlib
import os
import socket
import sys
from collections.abc import Sequence

from worker_runtime import own_packages, process_image, program, thread_counts
from worker_runtime.membership import (
    LENGTH,
    STREAMS,
    Forked,
    ForkRequest,
    Message,
    Ready,
    decode,
    encode,
    import_client,
)
from worker_runtime.program import Program


def serve(descriptor: int, modules: Sequence[str]) -> Program:
    """Import the modules, then fork a worker for each request; returns in the workers, with what each is to run.

    Raises:
        SystemExit: in the forkserver, when the agent has gone or closed the socket.
    """
    agent = socket.socket(fileno=descriptor)
    for name in modules:
        importlib.import_module(name)
    if modules:
        import_client()
    agent.sendall(encode(Ready(find_objection())))
    while True:
        request, streams = receive(agent)
        if request is None:
            raise SystemExit(0)
        pid = fork_twice()
        if pid == 0:
            agent.detach()  # the descriptor is closed with all others; the object must not close its next user's
            return become(request, streams)
        for stream in streams:
            os.close(stream)
        agent.sendall(encode(Forked(request.number, pid)))


def find_objection() -> str:
    """Why this process must not fork; "" when it may."""
    threads = len(os.listdir("/proc/self/task"))  # noqa: PTH208 - names are all that is wanted
    if threads > 1:
        return f"something that is imported here (a sitecustomize, a preload) started {threads - 1} more threads"
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "something that is imported here opened a CUDA device"
    return ""


def receive(agent: socket.socket) -> tuple[ForkRequest | None, list[int]]:
    """The next request with its streams; None when the agent has gone."""
    head, streams, _, _ = socket.recv_fds(agent, LENGTH.size, STREAMS)
    if not head:
        return None, []
    head += read(agent, LENGTH.size - len(head))
    message: Message = decode(read(agent, LENGTH.unpack(head)[0]))
    return (message if isinstance(message, ForkRequest) else None), streams


def read(agent: socket.socket, size: int) -> bytes:
    """Exactly so many bytes.

    Raises:
        SystemExit: the agent has gone.
    """
    data = bytearray()
    while len(data) < size:
        chunk = agent.recv(size - len(data))
        if not chunk:
            raise SystemExit(0)
        data += chunk
    return bytes(data)


def fork_twice() -> int:
    """Fork a grandchild that is nobody's child here: its pid, and 0 in itself."""
    reader, writer = os.pipe()
    middle = os.fork()
    if middle == 0:
        worker = os.fork()
        if worker == 0:
            os.close(reader)
            os.close(writer)
            return 0
        os.write(writer, str(worker).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        pid = int(pipe.read())
    os.waitpid(middle, 0)
    return pid


def become(request: ForkRequest, streams: Sequence[int]) -> Program:
    """Be the worker that was asked for; where that cannot be done in this process, execute it after all."""
    os.setsid()
    process_image.take_streams(streams)
    process_image.take_environment(request.environment)
    process_image.show(request.arguments, request.environment)
    os.chdir(request.directory)
    forget_relatives()
    if request.threads is not None:
        thread_counts.set_all(request.threads)
    try:
        loaded = program.load(request.arguments)
    except BaseException:  # noqa: BLE001 - whatever is wrong with the program, Python says it best
        os.execve(request.executable, request.arguments, request.environment)  # noqa: S606 - the user's own command
    own_packages.hide()
    return loaded


def forget_relatives() -> None:
    """Have secrets and random numbers of one's own, where an import has drawn them before the fork."""
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()
    processes = sys.modules.get("multiprocessing.process")
    if processes is not None:
        processes.current_process().authkey = os.urandom(32)
