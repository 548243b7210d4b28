"""Ways in which a rank holds up the others, the script that runs them, and the lines that hvdrun prints about them."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

# Each function stands until the test has made the file `path`.
HANGS = """
import collections, itertools, os, queue, socket, subprocess, sys, threading, time

def when(path, release):
    def follow():
        while not os.path.exists(path): time.sleep(0.02)
        release()
    threading.Thread(target=follow, daemon=True).start()

def lock(path):
    held = threading.Lock()
    held.acquire()
    when(path, held.release)
    held.acquire()

def two_locks(path):
    first, second, taken = threading.Lock(), threading.Lock(), threading.Event()
    def other():
        with second:
            taken.set()
            while not os.path.exists(path) and not first.acquire(timeout=0.05): pass
    with first:
        threading.Thread(target=other, daemon=True).start()
        taken.wait()
        second.acquire()

def queue_get(path):
    items = queue.Queue()
    when(path, lambda: items.put(1))
    items.get()

def endless_loop(path):
    ended = []
    when(path, lambda: ended.append(1))
    while not ended: pass

def call_with_the_gil(path):
    while not os.path.exists(path): collections.deque(itertools.repeat(None, 500_000_000), maxlen=0)

def sleep(path):
    while not os.path.exists(path): time.sleep(3)

def receive(path):
    one, other = socket.socketpair()
    when(path, lambda: other.send(b"x"))
    one.recv(1)

def subprocess_wait(path):
    subprocess.run(["sh", "-c", f"until [ -e {path} ]; do sleep 0.05; done"])

def thread_join(path):
    follower = threading.Thread(target=lambda: subprocess_wait(path), daemon=True)
    follower.start()
    follower.join()

def read_a_pipe(path):
    os.mkfifo(f"{path}.pipe")
    when(path, lambda: open(f"{path}.pipe", "w").close())
    open(f"{path}.pipe").read()

def evaluation(path):
    while not os.path.exists(path): settle(model(batch))

def write_a_checkpoint(path):
    while not os.path.exists(path):
        with open(f"{path}.checkpoint", "wb") as file:
            file.write(bytes(1_000_000))
            os.fsync(file.fileno())
"""
OF_TORCH = """
import torch
import worker_runtime.torch as hvd

class Stuck(torch.utils.data.Dataset):
    def __init__(self, path): self.path = path
    def __len__(self): return 1
    def __getitem__(self, item):
        while not os.path.exists(self.path): time.sleep(0.02)
        return item

def data_loader(path):
    for _ in torch.utils.data.DataLoader(Stuck(path), num_workers=1, multiprocessing_context="fork"): pass

model, batch, settle = torch.nn.Linear(64, 64), torch.ones(64, 64), torch.clone
def meet(name): hvd.allreduce(torch.ones(1), name=name)
"""
OF_MXNET = """
import mxnet as mx
import worker_runtime.mxnet as hvd

model, batch, settle = mx.gluon.nn.Dense(64), mx.nd.ones((64, 64)), mx.nd.NDArray.wait_to_read
model.initialize()
def meet(name): hvd.allreduce(mx.nd.ones(1), name=name).asnumpy()
"""
RUNS = """
hvd.init()
for number, word in enumerate(sys.argv[1:]):
    meet(f"before {number}")
    kind, rank = word.split(":")
    if hvd.rank() == int(rank): globals()[kind](f"go.{number}")
    meet(f"after {number}")
print("ends", flush=True)
"""
KINDS = re.findall(r"^def (\w+)\(path\)", HANGS, re.MULTILINE)
SCRIPTS = {"torch": HANGS + OF_TORCH + RUNS, "mxnet": HANGS + OF_MXNET + RUNS}
LINE = re.compile(
    r"^hvdrun: rank (?P<rank>\d+) \(localhost\) is in train\.py:\d+ in (?P<function>\w+): .*; "
    r"(\d+ others have|rank \d+ has) waited for it in allreduce '(?P<name>[\w. ]+)' for [\d.]+ s$",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Hang:
    """A kind of HANGS on one rank."""

    kind: str
    rank: int

    def __str__(self) -> str:
        """As the script reads it."""
        return f"{self.kind}:{self.rank}"


def make_hangs(kinds: Iterable[str], ranks: Sequence[int]) -> list[Hang]:
    """Each kind on each of these ranks."""
    return [Hang(kind, rank) for kind in kinds for rank in ranks]


def find_wrong(output: str, hangs: Sequence[Hang]) -> list[str]:
    """The lines about a wait that name another rank or function than that of its hang."""
    wrong = []
    for line in output.splitlines():
        if "waited for" not in line and "wait for each other" not in line:
            continue
        match = LINE.match(line)
        number = int(match["name"].split()[-1]) if match else -1
        if match is None or (match["function"], int(match["rank"])) != (hangs[number].kind, hangs[number].rank):
            wrong.append(line)
    return wrong
