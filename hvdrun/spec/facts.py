"""What an agent finds out about its host for `hvdrun doctor`: a plain value, which travels as JSON."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Leftover:
    """A process of an earlier job, whose agent has ended.

    command: its words, redacted. seconds: the time since its start.
    """

    pid: int
    command: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Facts:
    """What an agent has found out about its host.

    name: its own name. knows_name: the name has an address there.
    python, executable: the version and the file of the interpreter.
    packages: the versions of the installed packages that workers use, by name.
    cuda: the version of CUDA for which torch is built; "" for none.
    driver: the version of NVIDIA's driver; "" for none.
    accelerators: how many a program may use.
    busy: the bytes that others use on each accelerator, by its number.
    cpus: how many a program may use.
    memory: the bytes that a program may still take.
    shared_memory: the size of /dev/shm in bytes; None where there is none.
    free: by folder that a job needs, the bytes that are free.
    files, processes: how many a process of this user may open, and how many more the user may start; None for no limit.
    clock: seconds since 1970.
    proxies: the names of variables that name a proxy.
    unreadable: folders on PATH that the user cannot look into.
    leftovers: processes of earlier jobs. folders: the folders of agents that were killed.
    failure: why the host could not be examined; "" if it could.
    """

    name: str = ""
    knows_name: bool = True
    python: str = ""
    executable: str = ""
    packages: Mapping[str, str] = field(default_factory=dict)
    cuda: str = ""
    driver: str = ""
    accelerators: int = 0
    busy: Mapping[str, int] = field(default_factory=dict)
    cpus: int = 1
    memory: int = 0
    shared_memory: int | None = None
    free: Mapping[str, int] = field(default_factory=dict)
    files: int | None = None
    processes: int | None = None
    clock: float = 0.0
    proxies: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()
    leftovers: tuple[Leftover, ...] = ()
    folders: tuple[str, ...] = ()
    failure: str = ""

    def encode(self) -> str:
        """The facts as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: str) -> Self:
        """The facts of `encode`."""
        found: dict[str, Any] = json.loads(text)
        known = {each.name: found[each.name] for each in fields(cls) if each.name in found}
        for name in ("proxies", "unreadable", "folders"):
            known[name] = tuple(known.get(name, ()))
        return cls(**{**known, "leftovers": tuple(Leftover(**each) for each in known.get("leftovers", ()))})
