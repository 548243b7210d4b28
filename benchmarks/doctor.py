"""Time of `hvdrun doctor` on many hosts, beside one: the real visit, with agents that answer each order after 200 ms.

`--hosts` says how many. The agents are played in this process; what an answer says is small, so that waiting counts.
"""

import argparse
import asyncio
import time
from dataclasses import replace

from hvdrun.doctor.program import complete, read_request
from hvdrun.doctor.visits import Examination, visit
from hvdrun.spec.facts import Facts
from rendezvous.core.model import Host
from rendezvous.wire.orders import Examine, Examined, Order
from tests.hvdrun.played_agent import Machine

ANSWER_SECONDS = 0.2
ROUNDS = 5


class SlowMachine(Machine):
    """An agent that takes its time."""

    async def open(self) -> None:
        """Start."""
        await asyncio.sleep(ANSWER_SECONDS)
        await super().open()

    def send(self, order: Order) -> None:
        """Answer."""
        asyncio.get_running_loop().call_later(ANSWER_SECONDS, self._answer, order)

    def _answer(self, order: Order) -> None:
        super().send(order)
        if isinstance(order, Examine):
            self.outbox.put_nowait(Examined(Facts(memory=1 << 40, clock=time.time()).encode()))


def examine(count: int) -> tuple[float, Examination]:
    """Seconds of a visit of so many hosts, and what was found."""
    asked = read_request(["-H", "localhost:1"])
    if isinstance(asked, str):
        raise TypeError(asked)
    names = [f"10.0.{number // 250}.{number % 250 + 1}" for number in range(count)]
    spec = complete(asked.spec)
    workers = replace(spec.workers, hosts=tuple(Host(name, 1) for name in names), size=count)
    spec = replace(spec, workers=workers, remote=replace(spec.remote, hosts=frozenset(names)))
    began = time.perf_counter()
    found = asyncio.run(visit(spec, reach=lambda name, _: SlowMachine(name)))
    return time.perf_counter() - began, found


def main() -> None:
    """Measure in turns."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=100)
    count = parser.parse_args().hosts
    ratios = []
    for _ in range(ROUNDS):
        alone, _ = examine(1)
        together, found = examine(count)
        ratios.append(together / alone)
        print(
            f"1 host {alone:.2f} s; {len(found.hosts)} hosts {together:.2f} s, {len(found.milliseconds)} directions, "
            f"{len(found.findings)} findings"
        )
    print(f"{count} hosts take {sorted(ratios)[ROUNDS // 2]:.2f} times as long as one")


if __name__ == "__main__":
    main()
