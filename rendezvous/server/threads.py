"""How many threads this process can start.

gRPC ends a process in which it gets none, or never answers. So each program of a job looks before it uses gRPC.
"""

import threading

_STACK_BYTES = 256 * 1024  # little of the addresses that `ulimit -v` allows


def count_startable(most: int) -> int:
    """How many more threads can be started, up to this number.

    It starts them to find out: a user, a control group and a machine have limits, which other processes use up too.
    """
    end = threading.Event()
    former = threading.stack_size(_STACK_BYTES)
    started: list[threading.Thread] = []

    try:
        while len(started) < most:
            thread = threading.Thread(target=end.wait, name="hvdrun-scarcity", daemon=True)
            thread.start()
            started.append(thread)
    except RuntimeError:  # Python names no reason
        pass
    finally:
        threading.stack_size(former)
        end.set()
        for thread in started:
            thread.join()
    return len(started)
