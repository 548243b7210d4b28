"""The program: what its words ask for is a job like any other, or a text to print."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hvdrun.options.horovodrun.check_build import ask, render
from hvdrun.options.horovodrun.help_page import render_help
from hvdrun.options.horovodrun.table import CHECK_BUILD, HELP, VERSION
from hvdrun.options.horovodrun.translation import translate
from hvdrun.options.horovodrun.words import read_words
from hvdrun.options.request import make_job
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
    return replace(spec, marks_as_horovod=True, remarks=(*meant.remarks, *spec.remarks))


def _complete(_values: Mapping[str, Any]) -> str:
    return "horovodrun -np 2 python train.py"
