"""`dovetail ps`: list jobs; `dovetail describe`: one job in full."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dovetail.cli.connection import JobArgument, StateOption, connected, job_id, told_states
from dovetail.cli.outputs import aligned, count, note, plainly, say
from dovetail.cli.policy import policy_failure
from dovetail.cli.program_text import program_facts, script_text
from dovetail.cli.tables import (
    Column,
    Form,
    JsonOption,
    OutputOption,
    PlainOutputOption,
    Raw,
    plain,
    print_items,
    print_table,
    print_value,
    read_form,
)
from dovetail.cli.times import ago, clock, expected, lasting, since
from dovetail.model.errors import InputError
from dovetail.model.formats import gpu_hours, size

if TYPE_CHECKING:
    from dovetail.client.client import Client

ORDER = ("running", "stopping", "pending", "held")
STATES = {
    **{"PD": "pending", "R": "running", "CG": "stopping", "CD": "completed", "F": "failed"},
    **{"CA": "cancelled", "TO": "timeout", "NF": "node-failed", "OOM": "out-of-memory"},
}
WORDS = (*dict.fromkeys(STATES.values()), "held", "refused")
MOST_ESTIMATES = 50


@dataclass(frozen=True, slots=True)
class Listing:
    """Which jobs to list, and how."""

    filters: dict[str, Any]
    limit: int
    form: Form
    expand: bool
    start: bool

    @property
    def chosen(self) -> bool:
        """Whether a filter was given."""
        return any(value is not None for key, value in self.filters.items() if key != "active")

    @property
    def folds(self) -> bool:
        return not self.expand and self.form.kind in ("text", "wide")


def ps(
    *,
    mine: Annotated[bool, typer.Option("--mine", help="Only my jobs.")] = False,
    pending: Annotated[bool, typer.Option("--pending", help="Only waiting jobs.")] = False,
    states: Annotated[
        str,
        typer.Option("-t", "--states", metavar="PD,R", help="Only jobs in these states.", show_default=False),
    ] = "",
    user: Annotated[
        str | None, typer.Option("-u", "--user", metavar="NAME", help="Only jobs of this user.")
    ] = None,
    tenant: Annotated[
        str | None, typer.Option("-A", "--account", metavar="NAME", help="Only jobs of this tenant.")
    ] = None,
    name: Annotated[
        str | None, typer.Option("-n", "--name", metavar="NAME", help="Only jobs of this name.")
    ] = None,
    everything: Annotated[bool, typer.Option("-a", "--all", help="Also jobs that have ended.")] = False,
    start: Annotated[bool, typer.Option("--start", help="Show when waiting jobs will start.")] = False,
    expand: Annotated[bool, typer.Option("--expand", help="One line for each member of an array.")] = False,
    limit: Annotated[
        int, typer.Option(metavar="N", min=1, max=100_000, help="Maximum number of jobs.")
    ] = 100,
    watch: Annotated[
        bool, typer.Option("-w", "--watch", help="Update the list whenever something changes.")
    ] = False,
    output: OutputOption = "",
    as_json: JsonOption = False,
    state: StateOption = None,
) -> None:
    """List running and waiting jobs.

    An array is one line. `queue` is the same command.

    \b
    dovetail ps --mine
    dovetail ps --pending --start
    dovetail ps -a -o custom-columns=ID:.id,NODE:.placement[0].node
    """
    form = read_form(output, as_json)
    if state is not None and state.split(",")[0].lower() in WORDS and not Path(state).exists():
        raise InputError(
            f"--state {plainly(state)} names the plane's state folder; for jobs in a state write --states"
        )
    if pending and states:
        raise InputError(f"--pending and -t {plainly(states)} exclude each other; give one of them")
    wanted = (
        ["pending", "held"] if pending else [read_state(word) for word in states.split(",") if word.strip()]
    )
    filters: dict[str, Any] = {"state": wanted or None, "user": user, "tenant": tenant, "name": name}
    filters |= {"mine": mine or None, "active": None if everything or wanted else True}
    listing = Listing(filters, limit, form, expand, start)
    with connected(state, patience=600.0 if watch else 10.0) as client:
        if watch:
            _watched(client, listing)
        else:
            _shown(client, listing)


def read_state(word: str) -> str:
    word = word.strip()
    found = STATES.get(word.upper(), word.lower())
    if found not in WORDS:
        raise InputError(f"-t {plainly(word)!r} is not a state; write {', '.join(WORDS)} or PD, R, CG, ...")
    return found


def _shown(client: Client, listing: Listing) -> None:
    form = listing.form
    jobs, more = _listed(client, listing)
    if form.for_programs or form.kind in ("name", "custom-columns"):
        print_items(jobs, form, key="jobs", name="id", columns=())
        return
    jobs.sort(key=lambda job: ORDER.index(job["state"]) if job["state"] in ORDER else len(ORDER))
    columns = [*COLUMNS, _starts(client, jobs)] if listing.start else list(COLUMNS)
    foot = "why does a job wait?  dovetail why JOB" if any(_waits(job) for job in jobs) else ""
    head = (
        _summary(jobs, more)
        if jobs or not listing.chosen
        else "no matching jobs; list all with dovetail ps -a"
    )
    print_items(jobs, form, key="jobs", name="id", columns=columns, wide=WIDE, head=head, foot=foot)
    if more:
        note(f"there are more jobs; list them with --limit {10 * listing.limit}")
    if any(_waits(job) for job in jobs) and (failure := policy_failure(client.policy())):
        note(plainly(failure))


def _listed(client: Client, listing: Listing) -> tuple[list[dict[str, Any]], bool]:
    """The newest jobs, arrays folded into one line where wanted; and whether there are more jobs."""
    found = _read(client, listing, [listing.filters])
    # Only a list that is cut is read by state: a job that starts between two reads would be in neither.
    parts = _running_first(listing)
    return _read(client, listing, parts) if found[1] and len(parts) > 1 else found


def _read(
    client: Client, listing: Listing, parts: Sequence[Mapping[str, Any]]
) -> tuple[list[dict[str, Any]], bool]:
    lines: dict[str, dict[str, Any]] = {}
    for filters in parts:
        for raw in client.pages("/jobs", listing.limit + 1, fold=listing.folds or None, **filters):
            # An array with running and waiting members comes up twice, as does a job that stops meanwhile.
            id = raw["array"]["id"] if raw.get("members") else raw["id"]
            if len(lines) >= listing.limit and id not in lines:
                return list(lines.values()), True
            if id not in lines:
                lines[id] = _folded(raw) if raw.get("members") else dict(raw)
    return list(lines.values()), False


def _running_first(listing: Listing) -> list[dict[str, Any]]:
    """In a table, running jobs come first: many waiting jobs must not hide them."""
    if not listing.folds or not listing.filters["active"]:
        return [listing.filters]
    plain = {**listing.filters, "active": None}
    return [{**plain, "state": list(ORDER[:2])}, {**plain, "state": list(ORDER[2:])}]


def _folded(newest: Raw) -> dict[str, Any]:
    """An array as one row; the newest member represents the others."""
    from dovetail.client.client import overall

    members = newest["members"]
    states = {state: number for state, number in members["states"].items() if number}
    return {
        **newest,
        "id": newest["array"]["id"],
        "state": overall(states),
        "members": members["count"],
        "states": states,
        "told": ", ".join(f"{number} {state}" for state, number in states.items()),
        "member": newest["id"],
        "started_at": members["first_started_at"],
    }


def _summary(jobs: list[dict[str, Any]], more: bool) -> str:
    if not jobs:
        return "no jobs; submit one with dovetail submit job.yaml"
    counts: dict[str, int] = {}
    gpus = 0.0
    for job in jobs:
        for state, number in (job.get("states") or {job["state"]: 1}).items():
            counts[state] = counts.get(state, 0) + number
            held = job.get("gpus_held") if job.get("gpus_least") is not None else None
            each = (job.get("gpus") or 0) * _share(job) if held is None else held
            gpus += number * each * (state in ("running", "stopping"))
    parts = []
    if busy := counts.pop("running", 0) + counts.pop("stopping", 0):
        parts.append(f"{busy:,} running on {count(gpus, 'GPU')}")
    if waiting := counts.pop("pending", 0):
        parts.append(f"{waiting:,} waiting")
    parts += [f"{number:,} {state}" for state, number in sorted(counts.items())]
    return ", ".join(parts) + (" among the jobs shown" if more else "")


def _waits(job: Raw) -> bool:
    return job["state"] in ("pending", "held")


def where_or_why(job: Raw) -> str:
    """The nodes of a running job, the reason of a waiting job, or how the job ended."""
    if job.get("told"):
        return str(job["told"])
    if _waits(job):
        return str(job.get("reason") or "-")
    if job["state"] in ORDER:
        return folded_nodes([str(spot.get("node")) for spot in job.get("placement") or ()])
    if job.get("detail"):
        return str(job["detail"])
    return f"exit {job['exit_code']}" if job.get("exit_code") is not None else "-"


def folded_nodes(names: list[str]) -> str:
    """Node names as Slurm ranges: `n[0-3]`.

    >>> folded_nodes(["n0", "n1", "n2", "m7"]), folded_nodes(["gpu08", "gpu09", "gpu10"])
    ('n[0-2],m7', 'gpu[08-10]')
    """
    runs: list[list[Any]] = []  # prefix, first, last
    for name in names:
        match = re.fullmatch(r"(.*?)(\d+)", name)
        if match is None:
            runs.append([name, "", ""])
        elif runs and runs[-1][0] == match[1] and runs[-1][2] and int(match[2]) == int(runs[-1][2]) + 1:
            runs[-1][2] = match[2]
        else:
            runs.append([match[1], match[2], match[2]])
    return ",".join(f"{p}[{a}-{b}]" if a != b else f"{p}{a}" for p, a, b in runs) or "-"


def _time(job: Raw) -> str:
    """How long a job ran or waited, as the plane counts it; of an array, since it started or came."""
    if _waits(job):
        return lasting(since(job.get("submitted_at")) if job.get("told") else _counted(job, "waited"))
    if job.get("told"):
        return lasting(since(job.get("started_at"))) if job["state"] in ORDER else ago(job.get("ended_at"))
    return lasting(_counted(job, "took"))


def _counted(job: Raw, figure: str) -> float | None:
    """A figure of the plane; an older plane does not send it."""
    if job.get(figure) is not None:
        return float(job[figure])
    return since(job.get("submitted_at" if figure == "waited" else "started_at"))


def gpus_text(job: Raw) -> str:
    """`4`; `0.5` for half of one, `2x0.5` for half of each of two; `2..8` for an elastic job, or what it has.

    >>> [gpus_text({"gpus": gpus, "gpu_share": 0.5}) for gpus in (1, 2)], gpus_text({"gpus": 4})
    (['0.5', '2x0.5'], '4')
    >>> [gpus_text({"gpus": 8, "gpus_least": 2, "gpus_held": held}) for held in (0, 3)]
    ['2..8', '3 of 2..8']
    """
    if job.get("gpus_least") is not None:
        held = job.get("gpus_held")
        return (f"{held:g} of " if held else "") + f"{job['gpus_least']}..{job['gpus']}"
    gpus, share = job.get("gpus"), _share(job)
    if gpus is None or share == 1:
        return "-" if gpus is None else f"{gpus:g}"
    return f"{share:g}" if gpus == 1 else f"{gpus:g}x{share:g}"


def _share(job: Raw) -> float:
    """The share of each of its GPUs that the job may use."""
    share = job.get("gpu_share")
    return 1.0 if share is None else float(share)


COLUMNS = (
    Column("job", lambda job: job["id"] + ("_*" if job.get("members") else "")),
    Column("name", lambda job: str(job.get("name") or "-")[:40]),
    plain("user"),
    plain("state"),
    Column("GPUs", gpus_text, left=False),
    Column("time", _time, left=False),
    Column("where or why", where_or_why),
)
WIDE = (
    plain("letter", head="ST"),
    plain("tenant"),
    plain("kind"),
    plain("priority", left=False),
    plain("nodes", left=False),
    plain("gpu_types", head="types"),
    Column("limit", lambda job: lasting(job.get("time_limit")), left=False),
    plain("restarts", left=False),
    Column("submitted", lambda job: clock(job.get("submitted_at"))),
    plain("dependency"),
)


def _starts(client: Client, jobs: list[dict[str, Any]]) -> Column:
    """The expected start of each waiting job; the newest member represents an array."""
    found: dict[str, str] = {}
    for job in [job for job in jobs if _waits(job)][:MOST_ESTIMATES]:
        found[job["id"]] = expected(client.why(job.get("member") or job["id"]).starts) or "not known"
    return Column("starts", lambda job: found.get(job["id"], "-"))


def _watched(client: Client, listing: Listing) -> None:
    """On a terminal, redraw the list; elsewhere, print one line for each change."""
    if not sys.stdout.isatty():
        _shown(client, listing)
        sys.stdout.flush()
        for change in client.watch():
            if change["id"] is None:
                note("some changes were missed")
            elif listing.form.for_programs:
                import json

                say(json.dumps(change))
            else:
                say(
                    plainly(
                        f"{change.get('id')}  {change.get('state')}  {change.get('reason') or ''}"
                    ).rstrip()
                )
            sys.stdout.flush()
        return
    for _ in _changes(client):
        typer.echo("\x1b[2J\x1b[H", nl=False)
        _shown(client, listing)
        sys.stdout.flush()


def _changes(client: Client) -> Iterator[None]:
    """Yields at once and after each change, at most once a second."""
    import threading

    rung, ended = threading.Event(), list[BaseException]()

    def listen() -> None:
        try:
            for _ in client.connection.events("/watch"):  # the first message only confirms the subscription
                rung.set()
        except Exception as error:
            ended.append(error)
        rung.set()

    yield
    threading.Thread(target=listen, daemon=True).start()
    while not ended:
        rung.wait()
        rung.clear()
        yield
        time.sleep(1.0)
    raise ended[0]


# --- one job ---------------------------------------------------------------------------------------


def describe(
    job: JobArgument,
    output: PlainOutputOption = "",
    as_json: JsonOption = False,
    state: StateOption = None,
) -> None:
    """Show everything about a job, and its attempts.

    \b
    dovetail describe k3v9q2
    """
    form = read_form(output, as_json, ("json", "yaml"))
    with connected(state) as client:
        id = job_id(job)
        raw = dict(client.connection.get(f"/jobs/{id}"))
        if "states" in raw:
            attempts = []
        else:
            attempts = [dict(attempt) for attempt in client.attempts(id)]
        if print_value({**raw, "attempts": attempts}, form):
            return
        if "states" in raw:
            say(f"array {id} of {count(raw.get('count', 0), 'job')}: {told_states(raw)}")
            _say_facts(raw, _array_facts(raw))
            say()
            say(f"its members:  dovetail ps -a --expand --name {plainly(str(raw.get('name') or id))}")
            return
        say(plainly(f"{id} {raw.get('name') or ''}".rstrip() + f": {raw['state']}, {where_or_why(raw)}"))
        _say_facts(raw, _facts(raw))
        if attempts:
            say()
            print_table(attempts, ATTEMPTS)
        say()
        say(f"its output:  dovetail logs {id}")


def _say_facts(raw: Raw, facts: list[tuple[str, str]]) -> None:
    say()
    say(aligned([[label, plainly(text)] for label, text in facts if text not in ("-", "")], left=(0, 1)))
    if script := script_text(raw):
        say()
        say("what it runs:")
        say(script)


def _array_facts(raw: Raw) -> list[tuple[str, str]]:
    return [
        ("user", f"{raw.get('user') or '-'} of {raw.get('tenant') or '-'}"),
        *program_facts(raw),
        ("submitted", _when(raw.get("submitted_at"))),
        ("started", _when(raw.get("first_started_at"))),
        ("ended", _when(raw.get("ended_at"))),
        *_gpu_time(raw),
    ]


def _gpu_time(raw: Raw) -> list[tuple[str, str]]:
    lost = raw.get("lost_gpu_seconds") or 0.0
    return [
        ("used", gpu_hours(raw.get("gpu_seconds") or 0.0)),
        ("lost", f"{gpu_hours(lost)} of work that was not saved" if lost else "-"),
    ]


def _facts(raw: Raw) -> list[tuple[str, str]]:
    progress = raw.get("progress") or {}
    runs = raw["state"] in ("running", "stopping")
    return [
        ("state", f"{raw['state']} ({raw.get('letter', '')})"),
        ("reason", str(raw.get("reason") or "-")),
        ("user", f"{raw.get('user') or '-'} of {raw.get('tenant') or '-'}"),
        ("asks for", _asked(raw)),
        *program_facts(raw),
        ("limit", lasting(raw.get("time_limit"))),
        ("expected end", _expected_end(raw)),
        ("priority", str(raw.get("priority", "-"))),
        ("depends on", str(raw.get("dependency") or "-")),
        ("not before", _when(raw.get("begin_at"))),
        ("submitted", _when(raw.get("submitted_at"))),
        ("started", _when(raw.get("started_at"))),
        ("ended", _when(raw.get("ended_at"))),
        ("waited", lasting(raw.get("waited"))),
        *([("promised by", _when(raw["promised_by"]))] if raw.get("promised_by") else []),
        ("took", lasting(raw.get("took")) + (" so far" if runs else "") if raw.get("attempt") else "-"),
        ("on", folded_nodes([str(spot.get("node")) for spot in raw.get("placement") or ()])),
        *_held(raw),
        ("restarts", str(raw.get("restarts") or "-")),
        (
            "exit code",
            str(raw["exit_code"]) if raw.get("exit_code") is not None and raw["state"] not in ORDER else "-",
        ),
        ("detail", str(raw.get("detail") or "-")),
        ("progress", ", ".join(f"{key} {value}" for key, value in progress.items() if key != "time") or "-"),
        *_gpu_time(raw),
        ("output", str(raw.get("output") or "-")),
    ]


def _asked(raw: Raw) -> str:
    """Total GPUs; cores and memory on each node, as in a job file."""
    nodes, share = raw.get("nodes") or 1, _share(raw)
    each = [count(raw["cpus"], "CPU")] if raw.get("cpus") else []
    each += [f"{size(raw['memory'])} of memory"] if raw.get("memory") else []
    if raw.get("gpus_least") is not None:
        beside = f"; {' and '.join(each)} for each" if each else ""
        return f"{raw['gpus_least']} to {count(raw['gpus'], 'GPU')}, elastic{_types(raw)}{beside}"
    if each and not raw.get("gpus"):
        return f"{' and '.join(each)} on {'each of ' if nodes > 1 else ''}{count(nodes, 'node')}"
    gpus = count(raw.get("gpus") or 0, "GPU") if share == 1 else f"{gpus_text(raw)} GPUs"
    beside = f"; {' and '.join(each)}{' on each node' if nodes > 1 else ''}" if each else ""
    return f"{gpus} on {count(nodes, 'node')}{_types(raw)}{beside}"


def _held(raw: Raw) -> list[tuple[str, str]]:
    """How many GPUs an elastic job has now."""
    held = raw.get("gpus_held")
    return [("holds", count(int(held), "GPU"))] if held and raw.get("gpus_least") is not None else []


def _types(raw: Raw) -> str:
    types = raw.get("gpu_types")
    return f", {' or '.join(types) if isinstance(types, list) else types}" if types else ""


def _expected_end(raw: Raw) -> str:
    """By the estimate of a running job; the limit is another thing."""
    at = (raw.get("ends_at") or {}).get("likely")
    return _when(at)


def _when(text: Any) -> str:
    return f"{clock(text)} ({ago(text)})" if text else "-"


def _took(attempt: Raw) -> str:
    from dovetail.client.documents import moment

    if attempt.get("took") is not None:
        return lasting(attempt["took"])
    start, end = moment(attempt.get("started_at")), moment(attempt.get("ended_at"))
    if not hasattr(start, "tzinfo"):
        return "-"
    return lasting((end - start).total_seconds() if hasattr(end, "tzinfo") else since(attempt["started_at"]))


ATTEMPTS = (
    Column("attempt", lambda one: str(one.get("attempt") or one.get("epoch") or "-"), left=False),
    Column("started", lambda one: clock(one.get("started_at"))),
    Column("took", _took, left=False),
    Column("on", lambda one: folded_nodes([str(spot.get("node")) for spot in one.get("placement") or ()])),
    plain("exit_code", head="exit", left=False),
    Column("cause", lambda one: str(one.get("cause") or "-").replace("unstartable", "not started")),
    plain("detail", head="detail"),
)
