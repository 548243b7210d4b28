"""Pieces of the workers' scripts of many tests; without torch, whose import costs more than the rest of a job."""

# `wait_for(name)` returns when the test, or another worker, has put a file of this name into the directory.
WAIT_FOR = """
import os, pathlib, signal, subprocess, sys, time

def wait_for(name):
    while not pathlib.Path(name).exists():
        time.sleep(0.01)
"""
# `join()` is what hvd.init() does.
JOIN = (
    WAIT_FOR
    + """
from rendezvous.bootstrap import Bootstrap
from rendezvous.client import WorkerClient

def join():
    client = WorkerClient(Bootstrap.read(os.environ))
    try:
        return client.join(0)
    finally:
        client.close()
"""
)
