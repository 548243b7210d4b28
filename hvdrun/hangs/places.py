"""Where all workers of a job are: a plain value, its page, and its JSON."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from hvdrun.spec.stacks import Frame, Stack, WorkerStack, decode_stack
from rendezvous.core.model import Worker
from rendezvous.core.outcome import describe_ranks

_MOST_FRAMES = 30
_MOST_ANSWERED = 100  # faulthandler leaves out the others


@dataclass(frozen=True, slots=True)
class RankPlace:
    """Where one rank is, on which host."""

    rank: int
    host: str
    stack: Stack


def find_places(
    ranks: Mapping[Worker, int], answers: Mapping[str, Sequence[WorkerStack]], hosts: Sequence[str]
) -> tuple[RankPlace, ...]:
    """Where each rank is, in their order.

    Args:
        ranks: the workers that have not ended, with their ranks.
        answers: what the agents of the hosts have answered.
        hosts: those that were asked.
    """
    stacks = {(host, each.slot, each.incarnation): each.stack for host, found in answers.items() for each in found}
    places = []
    for worker, rank in sorted(ranks.items(), key=lambda item: item[1]):
        host = worker.slot.host
        stack = stacks.get((host, worker.slot.index, worker.incarnation))
        if stack is None and host in answers:
            stack = Stack(0, obstacle="it starts, or has ended")
        elif stack is None and host in hosts:
            stack = Stack(0, obstacle=f"the agent of {host} did not answer in time")
        elif stack is None:
            stack = Stack(0, obstacle=f"the agent of {host} has not begun")
        places.append(RankPlace(rank, host, stack))
    return tuple(places)


@dataclass(frozen=True, slots=True)
class JobPlaces:
    """A job of this machine, and where its ranks are.

    job: its name. pid: of its hvdrun. command: its words.
    """

    job: str
    pid: int
    command: str
    places: tuple[RankPlace, ...] = ()

    def encode(self) -> str:
        """The value as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: str) -> "JobPlaces":
        """The value of `encode`.

        Raises:
            ValueError, KeyError, TypeError: the text is malformed.
        """
        fields = json.loads(text)
        places = [RankPlace(each["rank"], each["host"], decode_stack(each["stack"])) for each in fields.pop("places")]
        return cls(**fields, places=tuple(places))

    @property
    def is_complete(self) -> bool:
        """Each rank has answered."""
        return all(each.stack.frames for each in self.places)


def render(job: JobPlaces) -> str:
    """The page for a person: equal stacks are shown once, with their ranks."""
    lines = [f"job {job.job}, hvdrun {job.pid}: {job.command}"]
    for places in _fold(job.places):
        hosts = dict.fromkeys(each.host for each in places)
        ranks = describe_ranks(each.rank for each in places)
        stack = places[0].stack
        lines.append(f"{ranks} ({', '.join(hosts)}):{f' {stack.obstacle}' if stack.obstacle else ''}")
        lines += [f"  {line}" for line in _render_stack(stack)]
    return "\n".join(lines)


def _fold(places: Sequence[RankPlace]) -> list[list[RankPlace]]:
    """The places with equal stacks, or equal reasons, together."""
    folded: dict[object, list[RankPlace]] = {}
    for each in places:
        folded.setdefault((each.stack.frames, each.stack.obstacle, each.stack.remark), []).append(each)
    return list(folded.values())


def _render_stack(stack: Stack) -> Iterator[str]:
    """The frames, the innermost first; those of hvdrun, when the program has called it, are one line."""
    shown = list(_skip_runtime(stack.frames))
    for frame in shown[:_MOST_FRAMES]:
        yield frame if isinstance(frame, str) else str(frame)
    if len(shown) > _MOST_FRAMES:
        least = "at least " if len(stack.frames) == _MOST_ANSWERED else ""
        yield f"... and {least}{len(shown) - _MOST_FRAMES} more"
    if stack.remark:
        yield f"({stack.remark})"


def _skip_runtime(frames: Sequence[Frame]) -> Iterator[Frame | str]:
    """The frames without those inside a call of hvdrun; with native frames all."""
    first = 0
    if not any(frame.is_native for frame in frames) and Stack(0, tuple(frames)).is_in_runtime:
        first = next(index for index, frame in enumerate(frames) if frame.is_program or index == len(frames) - 1)
        yield "in a call of hvdrun, which waits for other ranks"
    yield from frames[first:]
