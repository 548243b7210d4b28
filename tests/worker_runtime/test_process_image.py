"""A process that changes how it looks; each test does it in a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SHOW = """
import gc, json, os, sys
from worker_runtime import process_image
arguments, environment = json.load(open(sys.argv[1]))
shown = process_image.show(arguments, environment)
gc.collect()
seen = [os.fsdecode(open(f"/proc/self/{part}", "rb").read()) for part in ("cmdline", "environ")]
print(json.dumps([shown, *seen]))
"""

STREAMS = """
import io, os, sys
from worker_runtime import process_image
kept = open("/dev/zero")
before = [sys.stdin, sys.stdout, sys.stderr]
assert sys.stdin.seekable()
reader, writer = os.pipe()
os.write(writer, "ä\\nrest".encode())
os.close(writer)
file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
process_image.take_streams((reader, file, file))
assert [sys.stdin, sys.stdout, sys.stderr] == before
assert process_image.list_descriptors() == [0, 1, 2]
assert not sys.stdin.seekable()
assert sys.stdout.seekable()
print(sys.stdin.read(), sys.stdin.name, sys.stdin.mode, sys.stdout.name, sys.stdout.encoding, sys.stdout.errors)
print(type(sys.stdout.buffer).__name__, sys.stdout.write_through, sys.stderr.line_buffering)
"""


def run(script: str, *arguments: str, environment: dict[str, str] | None = None) -> str:
    """What the script prints; its standard input is /dev/null."""
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env={**os.environ, "PYTHONIOENCODING": "utf-8:strict", **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout


@pytest.mark.parametrize(
    ("arguments", "environment"),
    [
        (["python", "train.py", "a b", "", "ä"], {"A": "1", "B": "", "C": "x=y\nz"}),
        (["python"], {}),
        (["python", "x" * 300_000], {"LONG": "y" * 300_000}),
        (["python", "\udcff"], {"A": "\udcfe"}),
    ],
    ids=["usual", "least", "long", "undecodable"],
)
def test_arguments_and_environment_are_shown_to_whoever_looks(
    tmp_path: Path, arguments: list[str], environment: dict[str, str]
) -> None:
    given = tmp_path / "given"
    given.write_text(json.dumps([arguments, environment]), encoding="ascii")
    shown, seen_arguments, seen_environment = json.loads(run(SHOW, str(given)))
    assert shown is True
    assert seen_arguments == "".join(f"{argument}\0" for argument in arguments)
    assert seen_environment == "".join(f"{name}={value}\0" for name, value in environment.items())


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_streams_are_the_same_objects_on_other_descriptors(tmp_path: Path, unbuffered: str) -> None:
    written = tmp_path / "written"
    run(STREAMS, str(written), environment={"PYTHONUNBUFFERED": unbuffered})
    kind = "FileIO True False" if unbuffered else "BufferedWriter False True"
    assert written.read_text(encoding="utf-8") == f"ä\nrest <stdin> r <stdout> utf-8 strict\n{kind}\n"


def test_an_environment_replaces_the_former_for_children_too() -> None:
    script = (
        "import subprocess; from worker_runtime.process_image import take_environment as take; "
        "take({'ODD': '\\udcff', 'EMPTY': ''}); subprocess.run(['/usr/bin/env'])"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout
    assert out == b"ODD=\xff\nEMPTY=\n"
