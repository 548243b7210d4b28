"""`hvdrun horovodrun`: a job like any other, or a page: --help, --version, --check-build."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import fill
from typing import Any

from hvdrun.errors import LaunchError
from hvdrun.options.horovodrun.table import CHECK_BUILD, HELP, VERSION, WORDS, Word
from hvdrun.options.horovodrun.words import read_words, translate
from hvdrun.options.request import make_job
from hvdrun.options.table import BY_DEST
from hvdrun.spec.command import Surroundings, pin_python
from hvdrun.spec.jobspec import JobSpec
from hvdrun.version import __version__

NAME = "horovodrun"
HOROVOD_VERSION = "0.28.1"  # what `import horovod` says it is; scripts compare it


def read_request(words: Sequence[str], environment: Mapping[str, str] = os.environ) -> JobSpec | str:
    """The job that horovodrun's command line asks for, or the text that answers it.

    Raises:
        HvdrunError: it is wrong, or names what does not exist.
    """
    typed, command = read_words(words)
    asked = {word.flags for word, _, _ in typed}
    if HELP in asked:
        return render_help()
    if VERSION in asked:
        return HOROVOD_VERSION
    if CHECK_BUILD in asked:
        around = Surroundings(Path.cwd(), environment.get("PATH"), sys.executable)
        (interpreter,) = pin_python(("python",), around)
        return render(ask(interpreter), f"hvdrun v{__version__}, in place of Horovod v{HOROVOD_VERSION}, {interpreter}")
    meant = translate(typed)
    spec = make_job(meant.given, command, environment, _complete, like_horovod=True)
    remarks = (*meant.remarks, *spec.display.remarks)
    return replace(spec, display=replace(spec.display, marks_as_horovod=True, remarks=remarks))


def _complete(_values: Mapping[str, Any]) -> str:
    return "horovodrun -np 2 python train.py"


_MODULE = "worker_runtime.build"
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
    command = [interpreter, "-P", "-m", _MODULE]
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


_WIDTH = 100
_INDENT = 6


def render_help() -> str:
    """The page: each option with what it means here."""
    return "\n".join(
        [
            "Usage: horovodrun [options] COMMAND [arguments]",
            "",
            fill("hvdrun with the options of Horovod's launcher. Their long forms may be shortened.", _WIDTH),
            "",
            *_list_options(),
        ]
    )


def explain(word: Word) -> str:
    """What an option means here, in a sentence."""
    if word.instead:
        return f"No effect: {word.instead}."
    if word.variable:
        return f"Sets {word.variable}={word.value or 'VALUE'} for the workers."
    if word.means is not None and word.kind is not None:
        return "INFO and below mean --verbose."
    return f"As hvdrun's {BY_DEST[word.dest].flags[0]}." if word.dest else _OWN[word.flags[-1]]


_OWN = {
    "--version": "Print Horovod's version that hvdrun stands for.",
    "--check-build": "Print what the workers' Python can do.",
    "--help": "Print this page.",
    "--disable-cache": "Nothing is cached.",
    "--gloo": "The workers talk through gloo, and through NCCL for CUDA tensors.",
}


def _list_options() -> Iterator[str]:
    for word in WORDS:
        yield f"  {', '.join(word.flags)}{' VALUE' * word.words}"
        yield fill(explain(word), _WIDTH, initial_indent=" " * _INDENT, subsequent_indent=" " * _INDENT)
