"""The forkserver: it imports torch once per host, and forks workers that behave like executed ones.

The agent starts it with the job's interpreter and environment, as
`python -m worker_runtime.startup.forkserver DESCRIPTOR WORDS MODULES`; see `hvdrun/agent/prefork.py`, which has the
other end of its socket, and `hvdrun/agent/entrance`, which calls `serve`. It only imports modules: it runs no torch
operation, opens no device and no channel, and has one thread, since a lock that another thread holds during a fork
stays locked in the child forever. It forks each worker twice, so that the worker becomes a child of the agent, which is
a subreaper.

The child resets what it inherits: session, descriptors, environment, arguments, the seeds of torch's and NumPy's global
generators (Python reseeds its own), the number of threads, multiprocessing's key. Each worker prints the output of the
imports. Two differences remain: all workers of a host share one seed of hash randomization, and garbage collections
ignore objects from before the fork.

In an elastic job it later imports modules that torch imports for the first optimizer, which takes a second or two, so
that a replacement need not.
"""

import errno
import gc
import importlib
import json
import os
import select
import socket
import sys
import threading
from collections.abc import Sequence

from worker_runtime.rendezvous import (
    DESCRIPTORS,
    LENGTH,
    SNAPSHOT_FD,
    Forked,
    ForkRequest,
    Message,
    Ready,
    decode,
    encode,
    import_client,
    isolation,
    read_is_elastic,
    read_may_restart,
)
from worker_runtime.startup import mpi_notice, process_image, program, stack_handler
from worker_runtime.startup.program import Program

_OUTPUTS = (1, 2)
_STANDARD = (0, *_OUTPUTS)
_STREAMS_AND_GATE = 4
_PID_BYTES = 32
_IDLE_SECONDS = 5.0  # the first workers import and connect on the same cores meanwhile


def serve(descriptor: str, words: str, modules: str) -> Program:
    """Import modules, then fork a worker for each request. Returns only in the workers, with the program to run.

    Args:
        descriptor: the descriptor of the socket to the agent.
        words: the first words of the command after the interpreter, as a JSON list.
        modules: the modules to import, as a JSON list.

    Raises:
        SystemExit: in the forkserver, after the agent has ended or closed the socket.
    """
    agent = socket.socket(fileno=int(descriptor))
    names: list[str] = json.loads(modules)
    import_all(names)
    outputs = read_outputs()
    agent.sendall(encode(Ready(find_objection(agent) or program.find_objection(json.loads(words)))))
    later = list_later(names)
    has_forked = False

    while True:
        if later and has_forked and is_idle(agent):
            import_all(later)
            later, outputs = (), read_outputs()
            if find_objection(agent):
                raise SystemExit(0)  # the agent executes further workers

        request, descriptors = receive(agent)
        if request is None:
            raise SystemExit(0)
        pid = fork_twice()
        if pid == 0:
            agent.close()  # else the agent would not notice the forkserver's death
            *streams, gate = descriptors[:_STREAMS_AND_GATE]
            pass_gate(gate)
            return become(request, streams, outputs, descriptors[_STREAMS_AND_GATE:])

        for sent in descriptors:
            os.close(sent)
        agent.sendall(encode(Forked(request.number, pid)))
        has_forked = True


def import_all(modules: Sequence[str]) -> None:
    """Import modules, and exclude them from garbage collections, which would cost each worker 0.3 s at its exit."""
    was_enabled = gc.isenabled()
    gc.disable()
    for name in modules:
        importlib.import_module(name)
    if modules:
        import_client()
    gc.freeze()
    if was_enabled:
        gc.enable()


def list_later(modules: Sequence[str]) -> tuple[str, ...]:
    """The modules to import after the first workers were forked, for their replacements."""
    is_followed = read_is_elastic(os.environ) or read_may_restart(os.environ)
    return ("torch._dynamo",) if is_followed and "torch" in modules else ()


def is_idle(agent: socket.socket) -> bool:
    """Whether no request comes for some time."""
    ready, _, _ = select.select([agent], [], [], _IDLE_SECONDS)
    return not ready


def read_outputs() -> tuple[bytes, ...]:
    """The text printed so far on standard output and error, which are files."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    return tuple(os.pread(output, os.fstat(output).st_size, 0) for output in _OUTPUTS)


def find_objection(agent: socket.socket) -> str:
    """The reason why this process must not fork; "" if it may."""
    threads = len(os.listdir("/proc/self/task"))  # noqa: PTH208 - names are all that is wanted
    if threads > 1:
        return f"something that is imported here (a sitecustomize, a preload) started {threads - 1} more threads"
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "something that is imported here opened a CUDA device"
    opened = set(process_image.list_descriptors()).difference(_STANDARD, {agent.fileno()})
    for descriptor in opened - process_image.find_libraries(opened):
        return f"something that is imported here keeps {os.readlink(f'/proc/self/fd/{descriptor}')} open"  # noqa: PTH115 - pathlib would be imported for this
    return ""


def receive(agent: socket.socket) -> tuple[ForkRequest | None, list[int]]:
    """The next request with its descriptors; None after the agent has ended."""
    head, descriptors, _, _ = socket.recv_fds(agent, LENGTH.size, DESCRIPTORS)
    if not head:
        return None, []
    head += read(agent, LENGTH.size - len(head))
    message: Message = decode(read(agent, LENGTH.unpack(head)[0]))
    return (message if isinstance(message, ForkRequest) else None), descriptors


def read(agent: socket.socket, size: int) -> bytes:
    """Read exactly `size` bytes.

    Raises:
        SystemExit: the agent has ended.
    """
    data = bytearray()
    while len(data) < size:
        chunk = agent.recv(size - len(data))
        if not chunk:
            raise SystemExit(0)
        data += chunk
    return bytes(data)


def fork_twice() -> int:
    """Fork a grandchild that leads a new session; return its pid, and 0 in the grandchild.

    Raises:
        OSError: there are too many processes.
    """
    reader, writer = os.pipe()
    middle = os.fork()
    if middle == 0:
        try:
            worker = os.fork()
        except OSError as error:
            os.write(writer, str(-(error.errno or errno.EAGAIN)).encode())
            os._exit(1)
        if worker != 0:
            os._exit(0)
        os.setsid()
        os.write(writer, str(os.getpid()).encode())
        return 0

    os.close(writer)
    with os.fdopen(reader, "rb", buffering=0) as pipe:
        pid = int(pipe.read(_PID_BYTES))
    os.waitpid(middle, 0)

    if pid < 0:
        raise OSError(-pid, os.strerror(-pid))
    return pid


def pass_gate(gate: int) -> None:
    """Wait until the agent has registered this worker; exit if the agent has cancelled it."""
    if not os.read(gate, 1):
        os._exit(0)


def become(
    request: ForkRequest, streams: Sequence[int], outputs: Sequence[bytes], memories: Sequence[int] = ()
) -> Program:
    """Become the requested worker; if that fails in this process, execute the command instead.

    Args:
        request: which worker.
        streams: the descriptors of standard input, output and error.
        outputs: the output of the imports on standard output and error, which is printed first.
        memories: the descriptor of its memory of snapshots, if it has one.
    """
    memory = None
    if memories:
        memory = memories[0], int(request.environment[SNAPSHOT_FD])
    kept = process_image.find_libraries(set(process_image.list_descriptors()).difference(_STANDARD, streams, memories))
    process_image.take_descriptors(streams, memory, kept)
    try:
        if memory is not None and memory[1] in kept:
            raise OSError(errno.EEXIST, "the memory has taken the place of a library's file")  # noqa: TRY301 - as what fails below
        process_image.take_environment(request.environment)
        process_image.show(request.arguments, request.environment)
        os.chdir(request.directory)
        reset_shared_state()
        process_image.set_thread_counts(request.threads)
        process_image.end_without_inherited_destructors()
        loaded = program.load(request.arguments)
    except BaseException:  # noqa: BLE001 - Python itself reports the error of the program
        os.execve(request.executable, request.arguments, request.environment)  # noqa: S606 - the user's own command
    if memory is not None:
        os.set_inheritable(memory[1], False)  # noqa: FBT003 - os's signature
    isolation.hide()
    stack_handler.register(os.environ)
    mpi_notice.listen(os.environ)
    for output, text in zip(_OUTPUTS, outputs, strict=True):
        write(output, text)
    return loaded


def reset_shared_state() -> None:
    """Reset secrets, random generators and caches that the forked workers would share."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.seed()  # the import has seeded it
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()
    processes = sys.modules.get("multiprocessing.process")
    if processes is not None:
        processes.current_process().authkey = os.urandom(32)
    threading.main_thread()._set_native_id()  # type: ignore[attr-defined]  # noqa: SLF001 - Python 3.11 forgets to
    sys.path_importer_cache.clear()  # folders may have been created since


def write(output: int, data: bytes) -> None:
    """Write all data."""
    while data:
        data = data[os.write(output, data) :]


if __name__ == "__main__":
    raise SystemExit("this Python has not run the sitecustomize that the agent has put on its PYTHONPATH")
