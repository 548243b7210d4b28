"""Imports gRPC so that it does not speak to whoever reads this process's standard error; to be imported before it.

gRPC's C core writes a line for every stranger that fails a handshake, and that is the launcher's terminal, or the last
line that an agent is known by. How much it may say it reads from its environment variable, once, while it is imported;
so the variable is set just for that, and what this process starts does not inherit it. A user who has set it is obeyed.
The workers' own processes are left alone: gRPC may be the script's there.
"""

import importlib
import os

VARIABLE = "GRPC_VERBOSITY"


def import_quietly() -> None:
    """Import gRPC, silent unless the user wants to hear it; does nothing where it has been imported before."""
    if VARIABLE in os.environ:
        return
    os.environ[VARIABLE] = "NONE"
    try:
        importlib.import_module("grpc")
    finally:
        del os.environ[VARIABLE]


import_quietly()
