"""A process that answers questions of the Lab, one after the other, and knows nothing but them.

It reads a question as one line of JSON and answers with two lines: a word and a value. It is told how many
seconds of CPU it may take, and the kernel ends it if it takes more. It ends at once when the plane has closed
the other end of its input, even in the middle of a question, and after a long time without a question.

    ok           the answer                              never-fits   why, a text
    invalid      what is wrong with the question         bug          where, a text
"""

from __future__ import annotations

import gc
import json
import math
import os
import queue
import resource
import select
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

MEMORY = 2 << 30  # bytes of address space
LARGE = 500_000  # kB of memory that were in use once: then it was enough
MOST_QUESTIONS = 1_000
IDLE = 600.0  # seconds

Json = dict[str, Any]


def limit(cpu: float) -> None:
    """So many seconds of CPU from now on."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    end = math.ceil(used.ru_utime + used.ru_stime + cpu)
    resource.setrlimit(resource.RLIMIT_CPU, (end, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def answer(kind: str, question: Json) -> Json:
    """By the module that knows; they are slow to load, and loaded by then."""
    from dovetail.control.lab import policies, questions, simulate, throughput, whatif  # noqa: PLC0415

    tools: dict[str, Callable[[], Json]] = {
        "policies": policies.described,
        "simulate": lambda: simulate.simulated(questions.Simulate.model_validate(question)),
        "compare": lambda: simulate.compared(questions.Compare.model_validate(question)),
        "throughput": lambda: throughput.shared(questions.Throughput.model_validate(question)),
        "frontier": lambda: throughput.frontier(questions.Frontier.model_validate(question)),
        "what-if": lambda: whatif.continued(question),
    }
    return tools[kind]()


def answered(line: bytes) -> tuple[str, Any]:
    from dovetail.model.errors import DovetailError, InputError, NeverFits  # noqa: PLC0415

    try:
        asked = json.loads(line)
        limit(asked["cpu"])
        return "ok", answer(asked["kind"], asked["question"])
    except NeverFits as error:
        return "never-fits", str(error)
    except InputError as error:
        return "invalid", str(error)
    except MemoryError:
        return "invalid", "the answer needs more memory than the Lab has; ask for less"
    except DovetailError as error:  # a policy that planned what cannot be, a solver without an answer
        return "invalid", f"{error}; try other options"
    except Exception:
        return "bug", traceback.format_exc(limit=20)[-4_000:]


def said(word: str, value: Any) -> bytes:
    """Two lines; a number that JSON cannot write is null."""
    try:
        text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    except ValueError:
        text = json.dumps(_finite(value), separators=(",", ":"))
    return f"{word}\n{text}\n".encode()


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read(lines: queue.SimpleQueue[bytes], busy: threading.Event) -> None:
    """Beside the work: pass questions on, and end the process when the plane has gone."""
    source = sys.stdin.buffer
    while True:
        if not select.select([source], [], [], IDLE)[0]:
            if not busy.is_set():
                os._exit(0)
            continue
        line = source.readline()
        if not line.endswith(b"\n"):
            os._exit(0)
        busy.set()
        lines.put(line)


def most_memory() -> int:
    """The most that was in use at once, in kB. `ru_maxrss` would count what the plane had when it forked."""
    with open("/proc/self/status", encoding="ascii") as status:
        return next((int(line.split()[1]) for line in status if line.startswith("VmHWM:")), 0)


def main() -> None:
    os.nice(10)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    out = os.fdopen(os.dup(1), "wb")  # what a policy prints must not stand in an answer
    os.dup2(2, 1)
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    busy = threading.Event()
    threading.Thread(target=read, args=(lines, busy), daemon=True).start()
    warm_up()
    for number in range(MOST_QUESTIONS):
        line = lines.get()
        word, value = answered(line)
        done = number + 1 == MOST_QUESTIONS or most_memory() > LARGE
        busy.clear()
        out.write(said(f"{word} last" if done else word, value))
        out.flush()
        if done:
            break
        gc.collect()  # no question waits now
    os._exit(0)


def warm_up() -> None:
    """Load the modules that answers need, before the first question."""
    import highspy  # noqa: F401, PLC0415

    try:
        answer("policies", {})  # which loads every policy
    except Exception:  # a plug-in that cannot be loaded is reported when it is asked for
        traceback.print_exc()


if __name__ == "__main__":
    main()
