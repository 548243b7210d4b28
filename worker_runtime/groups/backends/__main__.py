"""`python -m worker_runtime.groups.backends NAME`: reports whether this interpreter's torch has the backend.

See `rendezvous.wire.processes`.

It exits with 0 after any answer, and with 2 on wrong use.
"""

import os
import sys

from worker_runtime.rendezvous import Backend, encode_answer, read_is_elastic


def main() -> int:
    """Answer on standard output; return the exit code."""
    if len(sys.argv) != 2 or sys.argv[1] not in set(Backend):  # noqa: PLR2004 - the program's name, and one argument
        sys.stderr.write(f"one argument was expected: {', '.join(Backend)}\n")
        return 2
    sys.stdout.write(encode_answer(_find_objection(Backend(sys.argv[1]))).decode())
    sys.stdout.flush()
    return 0


def _find_objection(requested: Backend) -> str:
    try:
        from worker_runtime.groups.backends.choice import Features, find_objection  # noqa: PLC0415 - it may be torch that is missing
    except ImportError as error:
        return f"torch cannot be imported ({error})"
    return find_objection(requested, Features.look(requested), is_elastic=read_is_elastic(os.environ))


if __name__ == "__main__":
    sys.exit(main())
