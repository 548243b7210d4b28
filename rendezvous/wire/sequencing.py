"""What a sequencer process and its owner say to each other: lines of JSON on the process' standard streams.

The process fixes the order in which the members of a generation run their collectives. It is `python -m MODULE
ADDRESS`: it listens on a free port of ADDRESS and writes one line that tells the port; then it reads one line for each
generation that it is to serve, and STOP, and ends at the end of its standard input. So it does not outlive whoever
holds the other end, and the generations' keys are on no command line and in no environment.
"""

import json
import re
from dataclasses import dataclass, field

MODULE = "worker_runtime.coordination.sequencer"
STOP = b"stop\n"  # the line that says that a stop notice has come for the job
# What imports have printed may stand before it, with or without the end of a line.
_PORT = re.compile(rb'\{"port": ?(\d{1,5})\}\s*$')


@dataclass(frozen=True, slots=True)
class Activation:
    """The sequencer is to serve this generation, of `size` members who know `key`."""

    generation: int
    size: int
    key: bytes = field(repr=False)

    def encode(self) -> bytes:
        """The line that says so."""
        fields = {"generation": self.generation, "size": self.size, "key": self.key.hex()}
        return json.dumps(fields).encode() + b"\n"


def read_port(line: bytes) -> int | None:
    """The port that a line of the process tells; None when it tells none."""
    match = _PORT.search(line)
    return None if match is None else int(match[1])
