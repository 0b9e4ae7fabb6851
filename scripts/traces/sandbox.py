"""Runs the tool calls of one session in a process of their own.

A fresh process per session keeps what a back end changes in its own modules out of the next session, so that a session
does not depend on which others were made. The parent uses `run`; the child uses `enter` before it imports a back end.
"""

import datetime
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

TIMEOUT_S = 120
# Back ends that ask for the date get this one, so that results do not depend on the day they are made.
NOW = (2024, 9, 1, 10, 30)
REFUSED_EVENTS = ("socket.", "subprocess.", "urllib.", "os.system", "os.exec", "os.fork", "os.spawn", "os.posix_spawn",
                  "os.remove", "os.rename", "os.mkdir", "os.rmdir", "shutil.", "ctypes.dlopen")


class BackendError(Exception):
    """A back end's process failed as a whole; a call that raises is a result, not this."""


def run(script: str, request: dict) -> Any:
    """Runs a script of this folder with a request on its standard input; returns what it prints as JSON."""
    path = Path(__file__).with_name(script)
    environment = {"TZ": "UTC", "PYTHONHASHSEED": "0", "PYTHONUTF8": "1", "PATH": os.environ.get("PATH", "")}
    try:
        done = subprocess.run([sys.executable, "-S", "-s", "-B", str(path)], input=json.dumps(request), text=True,
                              encoding="utf-8", capture_output=True, env=environment, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise BackendError(f"{script} took longer than {TIMEOUT_S} s") from error
    if done.returncode != 0:
        raise BackendError(f"{script} failed: {done.stderr.strip()[-2000:]}")
    return json.loads(done.stdout)


def enter() -> dict:
    """Child: reads the request, freezes the date, and refuses network, processes and writes from here on.

    The refusal guards against accidents. It is no jail for hostile code; the packages' digests are there for that.
    """
    request = json.load(sys.stdin)
    datetime.datetime = _Frozen
    sys.path[:0] = request["paths"]
    sys.addaudithook(_refuse)
    return request


class _Frozen(datetime.datetime):
    """A datetime whose present never moves."""

    @classmethod
    def now(cls, tz=None):
        return cls(*NOW, tzinfo=tz)

    @classmethod
    def today(cls):
        return cls(*NOW)


def _refuse(event: str, arguments: tuple) -> None:
    if event.startswith(REFUSED_EVENTS):
        raise PermissionError(f"a back end may not use {event}")
    if event == "open" and len(arguments) == 3 and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        raise PermissionError("a back end may not write files")
