"""Stacks get the frames of C and C++ from py-spy, or say why they have none."""

import json
from pathlib import Path

import pytest

from hvdrun.agent.native_frames import add_native_frames, merge
from hvdrun.spec.stacks import Frame, Stack

MAIN = Frame("train.py", 40, "<module>", "optimizer.step()")
STACK = Stack(7, (MAIN,))
LIBC = "/lib/libc.so.6"


def native(name: str, module: str = LIBC) -> dict[str, object]:
    return {"name": name, "filename": module, "module": module, "line": 0}


def python(name: str, file: str, line: int) -> dict[str, object]:
    return {"name": name, "filename": file, "module": None, "line": line}


FRAMES = [native("poll"), native("gloo::wait<int>(a, b)"), python("<module>", "/home/a/train.py", 40), native("start")]


def write_program(folder: Path, text: str) -> str:
    program = folder / "py-spy"
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)
    return str(program)


def test_native_frames_stand_above_the_call_that_made_them() -> None:
    found = merge(STACK, FRAMES)
    assert [str(frame) for frame in found.frames] == [
        "poll in libc.so.6",
        "gloo::wait in libc.so.6",
        "train.py:40 in <module>: optimizer.step()",
    ]
    assert found.place is not None
    assert found.place.line == 40


def test_a_thread_without_python_keeps_the_frames_of_its_answer() -> None:
    found = merge(STACK, [native("poll")])
    assert (found.frames, found.remark) == ((MAIN,), "no native frames: py-spy found no Python in its main thread")


def test_the_main_thread_of_each_process_is_read(tmp_path: Path) -> None:
    threads = [{"os_thread_id": 8, "frames": []}, {"os_thread_id": 7, "frames": FRAMES}]
    (tmp_path / "answer").write_text(json.dumps(threads))
    program = write_program(tmp_path, f'[ "$*" = "dump --native --json --pid 7" ] && cat {tmp_path}/answer')
    found = add_native_frames({"a": STACK, "b": Stack(0, obstacle="it starts")}, program)
    assert len(found["a"].frames) == 3
    assert found["b"] == Stack(0, obstacle="it starts")


def test_the_stack_of_a_process_that_may_not_be_traced_has_the_reason(tmp_path: Path) -> None:
    program = write_program(tmp_path, 'echo "Error: Permission Denied: Try running again" >&2; exit 1')
    found = add_native_frames({"a": STACK}, program)["a"]
    remark = "no native frames: Error: Permission Denied: Try running again"
    assert (found.frames, found.remark) == ((MAIN,), remark)


def test_the_stack_of_a_process_keeps_its_frames_if_py_spy_cannot_be_started(tmp_path: Path) -> None:
    found = add_native_frames({"a": STACK}, str(tmp_path / "gone"))["a"]
    assert (found.frames, found.remark) == (
        (MAIN,),
        "no native frames: py-spy could not be started (No such file or directory)",
    )


def test_a_host_without_py_spy_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert add_native_frames({"a": STACK})["a"].remark.endswith("(pip install py-spy)")
