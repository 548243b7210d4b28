"""`hvdrun horovodrun`: a job, or a page: --help, --version, --completion, --check-build."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from hvdrun.errors import LaunchError
from hvdrun.options.horovodrun import OPTIONS, parse, translate
from hvdrun.options.pages import describe, render_help
from hvdrun.options.request import make_job, refuse_missing_size
from hvdrun.spec.command import LookupContext, pin_python
from hvdrun.spec.jobspec import JobSpec
from hvdrun.version import __version__

ABOUT = "hvdrun with the options of Horovod's launcher. You may shorten their long forms."
HOROVOD_VERSION = "0.28.1"  # that of `import horovod`; scripts compare it


def read_request(words: Sequence[str], environment: Mapping[str, str] = os.environ) -> JobSpec | str:
    """The job that horovodrun's command line asks for, or the page that answers it.

    Raises:
        HvdrunError: the command line is wrong, or names something that does not exist.
    """
    typed, command = parse(words)
    pages = {each.option.dest: each.values for each in typed if each.option.acts}
    if "help" in pages:
        return render_help("horovodrun [options] COMMAND [arguments]", ABOUT, [("Options", describe(OPTIONS))])
    if "version" in pages:
        return HOROVOD_VERSION
    if "completion" in pages:
        from hvdrun.cli.completion import render_script  # noqa: PLC0415 - few ask for it

        return render_script(pages["completion"][0], "horovodrun")
    if "check_build" in pages:
        context = LookupContext(Path.cwd(), environment.get("PATH"), sys.executable)
        (interpreter,) = pin_python(("python",), context)
        return render(ask(interpreter), f"hvdrun v{__version__}, in place of Horovod v{HOROVOD_VERSION}, {interpreter}")
    meant = translate(typed)
    spec = make_job(meant.given, command, environment, _refuse_missing_size, like_horovod=True)
    remarks = (*meant.remarks, *spec.display.remarks)
    return replace(spec, display=replace(spec.display, marks_as_horovod=True, remarks=remarks))


def _refuse_missing_size(_values: Mapping[str, Any]) -> NoReturn:
    refuse_missing_size("horovodrun -np 2 python train.py")


_MODULE = "worker_runtime.build"
_LIMIT_SECONDS = 120.0  # a framework on a slow disk
_SECTIONS: Mapping[str, tuple[str, ...]] = {
    "Available Frameworks": ("TensorFlow", "PyTorch", "MXNet"),
    "Available Controllers": ("MPI", "Gloo"),
    "Available Tensor Operations": ("NCCL", "DDL", "CCL", "MPI", "Gloo"),
}


def ask(interpreter: str) -> Mapping[str, bool]:
    """The frameworks and backends of an interpreter, by Horovod's names.

    Raises:
        LaunchError: it does not report them.
    """
    command = [interpreter, "-P", "-m", _MODULE]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise LaunchError(
            f"{interpreter} did not report within {_LIMIT_SECONDS:g} s what its workers can do."
        ) from error
    except OSError as error:
        raise LaunchError(f"{interpreter} cannot be started: {error.strerror or error}.") from error

    try:
        return {str(name): bool(there) for name, there in json.loads(run.stdout).items()}
    except ValueError as error:
        reason = run.stderr.strip().rpartition("\n")[2] or f"it exited with code {run.returncode}"
        raise LaunchError(
            f"{interpreter} did not report what its workers can do: {reason}; install hvdrun for it."
        ) from error


def render(found: Mapping[str, bool], headline: str) -> str:
    """The page of `horovodrun --check-build`."""
    lines = [f"{headline}:"]
    for title, names in _SECTIONS.items():
        lines += ["", f"{title}:", *(f"    [{'X' if found.get(name) else ' '}] {name}" for name in names)]
    return "\n".join(lines)
