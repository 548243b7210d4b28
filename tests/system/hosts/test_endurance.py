"""The workers on several hosts meet one fault after the other: the training continues, at nearly the speed that it had.

A fault kills or stops a worker, or cuts a host off for a while; another training gets stop notices for hosts instead.
`make nightly` makes one of each, and one more in a detached job; `make soak` makes 60 in half an hour of each kind
(HVDRUN_SOAK_FAULTS), with eight workers on four hosts, and prints its speed, which no test judges. What is judged: only
workers that met a fault are lost, and none by a notice; no step is made twice. In the end all workers are there again,
with equal parameters and the loss of a training without faults, and nothing is left of any former worker.
"""

import itertools
import os
import random
import re
import signal
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import pytest
import torch
from torch.utils.data import DataLoader

from tests.system.hosts.cluster import BuildCluster
from tests.system.hosts.endurance import FAULTS, HOSTS, IS_SOAK, LEASE_SECONDS, LIMIT_SECONDS, WORKERS, Endurance, Step
from tests.system.hosts.roles import find_agents
from tests.system.recovery_scripts import endure
from tests.system.terminal_notes import show
from tests.waiting import wait_until

PERIOD_SECONDS = 30.0 if IS_SOAK else 0.0  # in the first half of each there is one fault, at a random moment
QUIET_SECONDS = 60.0 if IS_SOAK else 3.0  # before and after
CUT_SECONDS = LEASE_SECONDS + 3.0  # both sides have noticed then
LOSS_TOLERANCE = 0.15  # of the loss; with other orders of the samples it differs by a third of that


def kill(endurance: Endurance, chance: random.Random) -> None:
    """One worker."""
    os.kill(chance.choice(endurance.list_workers())[1].pid, signal.SIGKILL)


def stop(endurance: Endurance, chance: random.Random) -> None:
    """One worker, for good."""
    os.kill(chance.choice(endurance.list_workers())[1].pid, signal.SIGSTOP)


def cut(endurance: Endurance, chance: random.Random) -> None:
    """One host from all others, for a while."""
    network = endurance.cluster[chance.choice(endurance.list_workers())[0]].network
    network.cut()
    time.sleep(CUT_SECONDS)  # the fault is the cut itself
    network.mend()


def notify(endurance: Endurance, chance: random.Random) -> None:
    """One host gets a stop notice; its agent ends long before the host must."""
    host = endurance.cluster[chance.choice(endurance.list_workers())[0]]
    (agent,) = find_agents(host)
    os.kill(agent.pid, signal.SIGUSR2)
    wait_until(lambda: agent.pid not in {other.pid for other in find_agents(host)}, "the agent to be released")


Fate = Callable[[Endurance, random.Random], None]
FAULTY: Mapping[str, Fate] = {"kill": kill, "stop": stop, "cut": cut}
NOTICED: Mapping[str, Fate] = {"notice": notify}
EXPECTED_SENTENCES = {
    "notice": r"^hvdrun: host .* got a stop notice: the job continues without it",
    "kill": r"^hvdrun: rank .* was lost: killed by SIGKILL",
    "stop": r"^hvdrun: rank .* was lost: .* was stopped for longer than the lease",
    "cut": r"^hvdrun: (?:the )?host .* was lost: its agent was silent",
}


@dataclass(frozen=True, slots=True)
class Fault:
    """What happened, and when."""

    kind: str
    at: float


def make_faults(endurance: Endurance, chance: random.Random, fates: Mapping[str, Fate]) -> list[Fault]:
    """One after the other; as many of each kind, in random order."""
    kinds = list(itertools.islice(itertools.cycle(fates), FAULTS))
    chance.shuffle(kinds)
    faults = []
    began = time.monotonic()
    for number, kind in enumerate(kinds):
        if IS_SOAK:
            due = began + (number + chance.random() / 2) * PERIOD_SECONDS
            time.sleep(max(0.0, due - time.monotonic()))  # the moment is tested, and no event marks it
        else:
            endurance.await_all()
        faults.append(Fault(kind, time.monotonic()))
        fates[kind](endurance, chance)
    return faults


def train_alone(steps: int) -> float:
    """The loss after so many steps of one process, with batches as large as those of all workers together."""
    data, network = endure.load_data(), endure.build_network()
    optimizer = endure.make_optimizer(network)
    shuffled = torch.Generator().manual_seed(1)
    batches = DataLoader(data, batch_size=endure.BATCH * WORKERS, shuffle=True, generator=shuffled)
    for images, labels in itertools.islice(itertools.chain.from_iterable(itertools.repeat(batches)), steps):
        endure.step(network, optimizer, images, labels)
    return endure.find_loss(network, data)


def find_rate(steps: Sequence[Step], began: float, ended: float) -> float:
    """Steps in a second."""
    return sum(began < step.at <= ended for step in steps) / (ended - began)


def describe(steps: Sequence[Step], faults: Sequence[Fault], quiet_rate: float, ended: float) -> str:
    """How fast it was, and how long no step was made after a fault."""
    began = faults[0].at
    rate = find_rate(steps, began, ended)
    size = statistics.mean(step.size for step in steps if began < step.at <= ended)
    minutes, share = (ended - began) / 60, rate / quiet_rate
    lines = [
        f"{len(faults)} faults in {minutes:.1f} minutes: {rate:.2f} steps/s, {share:.1%} of {quiet_rate:.2f} without",
        f"{size:.2f} of {WORKERS} workers in the mean",
    ]
    pauses = defaultdict(list)
    for fault, following in pairwise([*faults, Fault("", ended)]):
        around = [
            later.at - earlier.at
            for earlier, later in pairwise(steps)
            if later.at > fault.at and earlier.at < min(following.at, fault.at + LEASE_SECONDS)
        ]
        pauses[fault.kind].append(max(around))
    for kind, seconds in pauses.items():
        median, most = statistics.median(seconds), max(seconds)
        lines.append(f"{kind}: {len(seconds)}; until the next step {median:.2f} s, at most {most:.2f} s")
    return "\n".join(lines)


@pytest.mark.nightly
@pytest.mark.timeout(PERIOD_SECONDS * FAULTS + 2 * QUIET_SECONDS + 4 * LIMIT_SECONDS)
@pytest.mark.parametrize(
    ("fates", "is_detached"),
    [(FAULTY, False), (NOTICED, False), (FAULTY, True)],
    ids=["faults", "notices", "faults-detached"],
)
def test_training_endures_one_fault_after_the_other(
    build: BuildCluster, request: pytest.FixtureRequest, fates: Mapping[str, Fate], *, is_detached: bool
) -> None:
    chance = random.Random(int(os.environ.get("HVDRUN_SOAK_SEED", "1")))  # noqa: S311 - a story, not a secret
    endurance = Endurance(build(HOSTS), is_detached=is_detached)
    endurance.await_all()
    quiet = time.monotonic()
    time.sleep(QUIET_SECONDS)  # the job runs without faults, and its speed is measured
    faults = make_faults(endurance, chance, fates)
    if IS_SOAK:
        time.sleep(max(0.0, faults[0].at + PERIOD_SECONDS * FAULTS - time.monotonic()))
    else:
        endurance.await_all()
    ended = time.monotonic()
    endurance.await_all()
    recovered = time.monotonic()
    time.sleep(QUIET_SECONDS)
    quiet_ended = time.monotonic()
    size, is_equal, last, loss = endurance.end().split()
    endurance.cluster.end_sessions()

    steps = endurance.list_steps()
    quiet_rate = statistics.mean((find_rate(steps, quiet, faults[0].at), find_rate(steps, recovered, quiet_ended)))
    show(request, describe(steps, faults, quiet_rate, ended))
    assert (size, is_equal) == (str(WORKERS), "1")
    assert [step.number for step in steps] == list(range(1, int(last) + 1))  # each once
    said = endurance.running.stderr.text()
    met = Counter({kind: len(re.findall(pattern, said, re.MULTILINE)) for kind, pattern in EXPECTED_SENTENCES.items()})
    assert met == Counter(fault.kind for fault in faults), said
    assert len(re.findall("^hvdrun: .* was lost: ", said, re.MULTILINE)) == sum(met[kind] for kind in FAULTY), said
    if IS_SOAK:
        assert float(loss) == pytest.approx(train_alone(int(last)), rel=LOSS_TOLERANCE)
    else:  # the loss has not converged after so few steps
        assert float(loss) < train_alone(0)
