"""Which generation the sequencer serves: one line of JSON from its owner."""

import json
from dataclasses import dataclass, field

from worker_runtime.coordination.wire import KEY_BYTES


class OrderError(ValueError):
    """The owner has sent a line that is no activation; the sequencer ends with it."""


@dataclass(frozen=True, slots=True)
class Activation:
    """A generation, how many ranks it has, and the key that proves who belongs to it."""

    generation: int
    size: int
    key: bytes = field(repr=False)


def parse_activation(line: bytes) -> Activation:
    """Read `{"generation": 3, "size": 4, "key": "<64 hexadecimal digits>"}`.

    Raises:
        OrderError: the line is none; the message does not repeat it, since it may hold a key.
    """
    try:
        fields = json.loads(line)
        activation = Activation(int(fields["generation"]), int(fields["size"]), bytes.fromhex(fields["key"]))
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise OrderError(f"a line with generation, size and key was expected ({type(error).__name__})") from None
    if activation.generation < 0 or activation.size < 1 or len(activation.key) != KEY_BYTES:
        raise OrderError(
            f"generation {activation.generation} of size {activation.size} with a key of {len(activation.key)} bytes "
            f"was ordered; at least 0, 1 and exactly {KEY_BYTES} were expected"
        )
    return activation
