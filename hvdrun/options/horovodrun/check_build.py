"""`horovodrun --check-build`: asks the Python that workers would have what it can do, and prints Horovod's page."""

import json
import subprocess
from collections.abc import Mapping

from hvdrun.errors import LaunchError

MODULE = "worker_runtime.build"
_LIMIT_SECONDS = 120.0  # a framework on a slow disk
_SECTIONS: Mapping[str, tuple[str, ...]] = {
    "Available Frameworks": ("TensorFlow", "PyTorch", "MXNet"),
    "Available Controllers": ("MPI", "Gloo"),
    "Available Tensor Operations": ("NCCL", "DDL", "CCL", "MPI", "Gloo"),
}


def ask(interpreter: str) -> Mapping[str, bool]:
    """What an interpreter's workers can do, by Horovod's names.

    Raises:
        LaunchError: it does not answer.
    """
    command = [interpreter, "-P", "-m", MODULE]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise LaunchError(f"{interpreter} did not say within {_LIMIT_SECONDS:g} s what its workers can do.") from error
    except OSError as error:
        raise LaunchError(f"{interpreter} cannot be started: {error.strerror or error}.") from error
    try:
        return {str(name): bool(there) for name, there in json.loads(run.stdout).items()}
    except ValueError as error:
        reason = run.stderr.strip().rpartition("\n")[2] or f"it ended with code {run.returncode}"
        raise LaunchError(
            f"{interpreter} does not say what its workers can do: {reason}; install hvdrun for it."
        ) from error


def render(found: Mapping[str, bool], headline: str) -> str:
    """The page, as `horovodrun --check-build` prints it."""
    lines = [f"{headline}:"]
    for title, names in _SECTIONS.items():
        lines += ["", f"{title}:", *(f"    [{'X' if found.get(name) else ' '}] {name}" for name in names)]
    return "\n".join(lines)
