"""Adds the frames of C and C++ to stacks, as py-spy reads them: `hvdrun stacks --native`.

py-spy stops the process by ptrace, for some tenths of a second. So it is used only when somebody asks for that.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from hvdrun.spec.stacks import Frame, Stack

T = TypeVar("T", bound=Hashable)

LIMIT_SECONDS = 10.0  # for one process; shorter than the time after which a stopped worker is killed
_AT_ONCE = 4
_PROGRAM = "py-spy"
_ABSENT = "no native frames: py-spy is not installed there (pip install py-spy)"
_MOST_NAME_CHARACTERS = 80
_ARGUMENTS = re.compile(r"[<(].*", re.DOTALL)  # of templates and functions of C++


def add_native_frames(stacks: Mapping[T, Stack], program: str | None = None) -> dict[T, Stack]:
    """These stacks with native frames; with a remark where there are none.

    Args:
        stacks: of processes on this host.
        program: py-spy; without it, that beside this interpreter, or on PATH.
    """
    found = program or _find_program()
    if found is None:
        return {worker: replace(stack, remark=_ABSENT) for worker, stack in stacks.items()}
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        answers = pool.map(lambda stack: _add(stack, found), stacks.values())
        return dict(zip(stacks, answers, strict=True))


def merge(stack: Stack, frames: Sequence[Mapping[str, Any]]) -> Stack:
    """The stack with the frames that py-spy has read of its main thread, the innermost first.

    The frames of the interpreter below the program's outermost call are left out. The program may have gone on between
    the two readings: the frames of py-spy count.
    """
    texts = {(Path(frame.file).name, frame.line): frame.text for frame in stack.frames}
    merged = tuple(_convert(frames, texts))
    while merged and merged[-1].is_native:
        merged = merged[:-1]
    if not merged:
        return replace(stack, remark="no native frames: py-spy found no Python in its main thread")
    return replace(stack, frames=merged, obstacle="")


def _convert(frames: Sequence[Mapping[str, Any]], texts: Mapping[tuple[str, int], str]) -> Iterator[Frame]:
    for each in frames:
        name, module = str(each["name"]), each.get("module")
        if module:
            short = _ARGUMENTS.sub("", name)[:_MOST_NAME_CHARACTERS] or name[:_MOST_NAME_CHARACTERS]
            yield Frame(str(module), 0, short, is_native=True)
        else:
            file, line = str(each["filename"]), int(each["line"])
            yield Frame(file, line, name, texts.get((Path(file).name, line), ""))


def _add(stack: Stack, program: str) -> Stack:
    if not stack.pid:
        return stack
    command = (program, "dump", "--native", "--json", "--pid", str(stack.pid))
    complaint = ""
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False)
        complaint = " ".join(ran.stderr.split())
        threads = json.loads(ran.stdout)
        frames = next(each["frames"] for each in threads if each["os_thread_id"] == stack.pid)
        return merge(stack, frames)
    except subprocess.TimeoutExpired:
        reason = f"py-spy did not end within {LIMIT_SECONDS:g} s"
    except OSError as error:
        reason = f"py-spy could not be started ({error.strerror})"
    except (ValueError, KeyError, TypeError, StopIteration):
        reason = complaint or "py-spy has not found its main thread"
    return replace(stack, remark=f"no native frames: {reason}")


def _find_program() -> str | None:
    beside = Path(sys.executable).parent
    return shutil.which(_PROGRAM, path=os.pathsep.join([str(beside), os.environ.get("PATH", os.defpath)]))
