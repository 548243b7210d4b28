"""A clock that jumps by an hour for the processes of a job, and for no other of this machine.

libfaketime does not serve: it has Python's time.sleep() fail after a jump (0.9.10, with FAKETIME_DONT_FAKE_MONOTONIC).
"""

import shutil
import subprocess
from pathlib import Path

import pytest

_SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, now);
    if (!result && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) && !access(getenv("TEST_JUMP"), F_OK))
        now->tv_sec += 3600;
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (now) *now = exact.tv_sec;
    return exact.tv_sec;
}
"""


def build(folder: Path) -> dict[str, str]:
    """The variables of a process whose clock, and its children's, jumps when there is a file "jump" in the folder."""
    if shutil.which("cc") is None:
        pytest.skip("this test needs a compiler for C: apt-get install gcc libc6-dev")
    library = folder / "jump.so"
    command = ["cc", "-shared", "-fPIC", "-O", "-x", "c", "-", "-o", str(library), "-ldl"]
    subprocess.run(command, input=_SOURCE.encode(), check=True, timeout=60)
    return {"LD_PRELOAD": str(library), "TEST_JUMP": str(folder / "jump")}
