"""Through which library the workers move tensors: the names, and how a process is asked whether its torch has one.

The process is `python -m MODULE NAME`, run by the workers' own interpreter: it writes one line of JSON that holds an
objection, which is empty when there is none.
"""

import json
import re
from collections.abc import Mapping
from enum import StrEnum

from rendezvous.bootstrap import BACKEND
from rendezvous.errors import UnknownBackendError

MODULE = "worker_runtime.groups.backends"
# What imports have printed may stand before it, with or without the end of a line.
_ANSWER = re.compile(rb'(\{"objection": .*\})\s*$')


class Backend(StrEnum):
    """What may be asked for; without a wish each kind of tensor takes what suits it."""

    GLOO = "gloo"
    NCCL = "nccl"
    UCC = "ucc"


def read_backend(environment: Mapping[str, str]) -> Backend | None:
    """The backend that a worker's variables ask for; None when they ask for none.

    Raises:
        UnknownBackendError: they ask for one that there is not.
    """
    name = environment.get(BACKEND)
    if not name:
        return None
    try:
        return Backend(name)
    except ValueError:
        raise UnknownBackendError(BACKEND, name, [backend.value for backend in Backend]) from None


def encode_answer(objection: str) -> bytes:
    """The line with which the process answers; the objection is a sentence without a full stop, or empty."""
    return json.dumps({"objection": objection}).encode() + b"\n"


def read_answer(output: bytes) -> str | None:
    """The objection at the end of what the process wrote; None when it did not answer."""
    match = _ANSWER.search(output)
    if match is None:
        return None
    try:
        return str(json.loads(match[1])["objection"])
    except ValueError:
        return None
