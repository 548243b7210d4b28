"""Pieces of the workers' scripts of many tests; without torch, whose import costs more than the rest of a job."""

# `wait_for(name)` returns when the test, or another worker, has put a file of this name into the directory.
WAIT_FOR = """
import os, pathlib, signal, subprocess, sys, time

def wait_for(name):
    while not pathlib.Path(name).exists():
        time.sleep(0.01)
"""
# `join()` is what hvd.init() does.
JOIN = (
    WAIT_FOR
    + """
from rendezvous.bootstrap import Bootstrap
from rendezvous.client import WorkerClient

def join():
    client = WorkerClient(Bootstrap.read(os.environ))
    try:
        return client.join(0)
    finally:
        client.close()
"""
)
# Each worker meets the others of its round through the port of rank 0, as torch.distributed does.
WORLD = """
import os, socket, sys, time
number, rank, size = (int(os.environ[name]) for name in ("TORCHELASTIC_RESTART_COUNT", "RANK", "WORLD_SIZE"))
master = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
others = []
if rank == 0:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("", master[1]))
    listener.listen()
    others = [listener.accept()[0] for _ in range(size - 1)]
else:
    while not others:
        try:
            others.append(socket.create_connection(master, timeout=5))
        except OSError:
            time.sleep(0.05)
for other in others:
    other.setblocking(False)
print(f"round {number} rank {rank} of {size} on {os.environ['HOROVOD_HOSTNAME']}", flush=True)
while not os.path.exists("end"):
    time.sleep(0.05)
    for other in others:
        try:
            if not other.recv(1) and not os.path.exists("end"):
                sys.exit("a peer is gone")
        except BlockingIOError:
            pass
"""
