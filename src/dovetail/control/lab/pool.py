"""The workers of the Lab: a few processes beside the plane, so that teaching never delays scheduling.

A worker gets nothing of the plane but the question: no open file, no variable of its environment but those
that tell where the code is. One worker is kept ready while the Lab is in use. It ends by itself when the Lab
is not used any more, and when the plane ends, however that happens.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import dovetail
from dovetail.model.errors import DovetailError, InputError, NeverFits

AT_ONCE = 2
MOST_WAITING = 8
PATIENCE = 10.0  # seconds that a question waits for a worker
WALL = 60.0  # seconds, more than which no answer takes

log = logging.getLogger("dovetail.lab")


class Busy(DovetailError):
    """Too much is asked at once."""


class Broken(DovetailError):
    """A worker ended, or did not do what it should."""


class Worker:
    """One process, and the pipes to it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "dovetail.control.lab.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment(),
            cwd="/",
            start_new_session=True,  # a Ctrl-C is for the plane, which ends it
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, parts: Iterable[bytes]) -> tuple[str, bytes]:
        """The word and the value, or nothing if it ended before."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            for part in parts:
                self._process.stdin.write(part)
            self._process.stdin.flush()
            word = self._process.stdout.readline()
            value = self._process.stdout.readline() if word else b""
        except (OSError, ValueError):  # gone, or closed meanwhile
            return "", b""
        return (word.decode().strip(), value[:-1]) if value.endswith(b"\n") else ("", b"")

    def kill(self) -> None:
        self._process.kill()

    def end(self) -> int:
        """Gone for good; how it ended."""
        self._process.kill()
        code = self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):  # a question that it never read
                    pipe.close()
        return code


def environment() -> dict[str, str]:
    """What a worker may know of ours: where the code is. Solvers are told to start no threads."""
    code = str(Path(dovetail.__file__).parents[1])
    paths = [code, *(path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path)]
    kept = {name: value for name in ("PATH", "LANG", "LC_ALL", "TZ") if (value := os.environ.get(name))}
    return {
        **kept,
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(map(os.path.abspath, paths))),
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


class Pool:
    """At most `at_once` questions at a time, and one of each caller."""

    def __init__(self, at_once: int = AT_ONCE, patience: float = PATIENCE, wall: float = WALL) -> None:
        self._at_once, self._patience, self._wall = at_once, patience, wall
        self._turn = threading.Condition()
        self._asking: set[str] = set()  # callers with a question in work
        self._waiting: set[str] = set()
        self._idle: list[Worker] = []
        self._working: set[Worker] = set()
        self._closed = False

    def warm(self) -> None:
        """Have a worker ready: a user has opened the Lab."""
        with self._turn:
            if not self._closed and not self._working and not self._idle:
                self._idle.append(Worker())

    def close(self) -> None:
        """End all workers; callers that still wait get an error."""
        with self._turn:
            self._closed = True
            idle, self._idle = self._idle, []
            working = list(self._working)
            self._turn.notify_all()
        for worker in working:
            worker.kill()  # the thread that uses it ends it
        for worker in idle:
            worker.end()
        with self._turn:
            self._turn.wait_for(lambda: not self._working, timeout=10)

    def ask(self, owner: str, kind: str, question: Mapping[str, Any] | Iterable[bytes], cpu: float) -> bytes:
        """The answer as JSON text. `question` may come as pieces of JSON, if it is large."""
        self._begin(owner)
        try:
            asked = [_dumped(question)] if isinstance(question, Mapping) else question
            head = f'{{"kind":{json.dumps(kind)},"cpu":{cpu},"question":'.encode()
            return self._answer([head, *asked, b"}\n"], cpu)
        finally:
            with self._turn:
                self._asking.discard(owner)
                self._turn.notify_all()

    def _begin(self, owner: str) -> None:
        with self._turn:
            if owner in self._waiting:  # no caller fills the queue alone
                raise Busy("a question of yours waits for the Lab already; wait for its answer")
            if len(self._waiting) >= MOST_WAITING:
                raise Busy("too many questions wait for the Lab; try again in a moment")
            self._waiting.add(owner)
            try:
                free = self._turn.wait_for(lambda: self._closed or self._free(owner), self._patience)
            finally:
                self._waiting.discard(owner)
            if self._closed:
                raise Broken("the plane is going down")
            if not free:
                if owner in self._asking:
                    raise Busy("your last question to the Lab is still being worked out; wait for its answer")
                raise Busy("the Lab works on the questions of others; try again in a moment")
            self._asking.add(owner)

    def _free(self, owner: str) -> bool:
        return len(self._asking) < self._at_once and owner not in self._asking

    def _answer(self, parts: list[bytes], cpu: float) -> bytes:
        word, value, code, late = "", b"", 0, False
        for _ in range(2):
            worker, fresh = self._take()
            began = time.monotonic()
            watch = threading.Timer(self._wall, worker.kill)
            watch.start()
            try:
                word, value = worker.ask(parts)
                late = not watch.is_alive()
            finally:
                watch.cancel()
                watch.join()
                code = self._give_back(worker, keep=bool(word) and not word.endswith(" last"))
            # One that was idle may have gone just now, without having seen the question.
            if word or fresh or code == -signal.SIGXCPU or time.monotonic() - began > 1.0:
                break
        if self._closed and not word:
            raise Broken("the plane is going down")
        match word.removesuffix(" last"):
            case "ok":
                return value
            case "never-fits":
                raise NeverFits(json.loads(value))
            case "invalid":
                raise InputError(json.loads(value))
            case "bug":
                log.error("a question to the Lab failed: %s", json.loads(value))
                raise Broken("the Lab has a bug here; the plane's log says more")
        if code == -signal.SIGXCPU:
            raise InputError(f"took more than {cpu:g} CPU seconds; ask for fewer jobs")
        if late:
            raise InputError(f"took more than {self._wall:g} seconds; ask for fewer jobs")
        log.error("a worker of the Lab ended with %s", code)
        raise Broken(f"the Lab's worker ended unexpectedly ({_how(code)}); ask for less, or again")

    def _take(self) -> tuple[Worker, bool]:
        with self._turn:
            while self._idle:
                worker = self._idle.pop()
                if worker.alive:
                    self._working.add(worker)
                    return worker, False
                worker.end()
            if self._closed:
                raise Broken("the plane is going down")
            worker = Worker()
            self._working.add(worker)
            return worker, True

    def _give_back(self, worker: Worker, keep: bool) -> int:
        """Keep it for the next, or end it and have another one ready."""
        code = 0 if keep else worker.end()
        with self._turn:
            self._working.discard(worker)
            if self._closed:
                if keep:
                    worker.end()
            elif keep:
                self._idle.append(worker)
            elif not self._idle:
                self._idle.append(Worker())
            self._turn.notify_all()
        return code


def _dumped(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _how(code: int) -> str:
    try:
        return signal.Signals(-code).name if code < 0 else f"exit {code}"
    except ValueError:
        return f"signal {-code}"
