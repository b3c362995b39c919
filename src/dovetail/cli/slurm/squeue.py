"""`squeue`: jobs that run or wait, in Slurm's columns. The waiting members of an array are one line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from dovetail.cli.connection import connected
from dovetail.cli.outputs import note, print_json
from dovetail.cli.ps import MOST_ESTIMATES, folded_nodes, read_state
from dovetail.cli.slurm.formats import Field, Options, Raw, listed, moment, print_formatted, ranges, span
from dovetail.cli.times import since

if TYPE_CHECKING:
    from dovetail.client.client import Client

USUAL = "%.18i %.9P %.8j %.8u %.2t %.10M %.6D %R"
LONG = "%.18i %.9P %.8j %.8u %.8T %.10M %.9l %.6D %R"
START = "%.18i %.9P %.8j %.8u %.2t %.19S %.6D %R"
WAITING = ("pending", "held")


def squeue(words: Sequence[str]) -> None:
    options = Options("squeue", "dovetail ps")
    options.add_argument("-u", "--user", "--users")
    options.add_argument("--me", action="store_true")
    options.add_argument("-j", "--jobs", "--job")
    options.add_argument("-t", "--states", "--state")
    options.add_argument("-A", "--account", "-p", "--partition", "-q", "--qos")
    options.add_argument("-n", "--name")
    options.add_argument("-w", "--nodelist")
    options.add_argument("-o", "--format")
    options.add_argument("--start", action="store_true")
    options.add_argument("-h", "--noheader", action="store_true")
    options.add_argument("-l", "--long", action="store_true")
    options.add_argument("-r", "--array", action="store_true")
    options.add_argument("--json", action="store_true")
    options.ignore("-a", "--all", why="all partitions are shown anyway")
    options.ignore("-S", "--sort", why="running jobs come first, then the newest", value=True)
    asked = options.read(words)
    with connected(None) as client:
        jobs = _jobs(client, asked)
        if asked.json:
            print_json({"jobs": jobs})
            return
        if asked.start:
            jobs = _with_starts(client, jobs)
    jobs.sort(key=lambda job: job["state"] in WAITING)
    lines = jobs if asked.array else _folded(jobs)
    form = asked.format or (START if asked.start else LONG if asked.long else USUAL)
    print_formatted(lines, form, FIELDS, head=not asked.noheader)


def _jobs(client: Client, asked: Any) -> list[dict[str, Any]]:
    states = None if asked.states in (None, "all") else [read_state(word) for word in listed(asked.states)]
    if states and "pending" in states:
        states.append("held")  # which Slurm calls pending too
    users, ids, nodes = listed(asked.user), listed(asked.jobs), set(listed(asked.nodelist))
    filters: dict[str, Any] = {
        "state": states,
        "active": True if states is None and asked.states != "all" else None,
        "mine": asked.me or None,
        "user": users[0] if len(users) == 1 else None,
        "tenant": asked.account,
        "name": asked.name,
    }
    found = []
    for job in client.pages("/jobs", **filters):
        array = (job.get("array") or {}).get("id")
        on = {str(part.get("node")) for part in job.get("placement") or ()}
        chosen = not ids or {job["id"], array} & set(ids)
        if chosen and (not users or job.get("user") in users) and (not nodes or on & nodes):
            found.append(dict(job))
    return found


def _folded(jobs: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The members of an array that wait for the same reason as one line: `k3v9q2_[3-9]`."""
    lines: list[dict[str, Any]] = []
    groups: dict[tuple[str, str], list[int]] = {}
    for job in jobs:
        array = job.get("array")
        if not array or job["state"] not in WAITING:
            lines.append(job)
            continue
        key = (str(array["id"]), str(job.get("reason")))
        if key not in groups:
            lines.append({**job, "folded": groups.setdefault(key, [])})
        groups[key].append(int(array["index"]))
    return lines


def _with_starts(client: Client, jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The waiting jobs, with the start that is expected of each."""
    waiting = [job for job in jobs if job["state"] in WAITING]
    if len(waiting) > MOST_ESTIMATES:
        note(f"starts are worked out for the first {MOST_ESTIMATES} of {len(waiting):,} waiting jobs")
    for job in waiting[:MOST_ESTIMATES]:
        starts = client.why(job["id"]).starts
        job["starts_at"] = starts.likely if starts is not None else None
    return waiting


def _id(job: Raw) -> str:
    if "folded" in job:
        return f"{job['array']['id']}_[{ranges(job['folded'])}]"
    return str(job["id"])


def _used(job: Raw) -> str:
    return span(0 if job["state"] in WAITING else since(job.get("started_at")) or 0)


def _left(job: Raw) -> str:
    limit = job.get("time_limit")
    if limit is None or job["state"] in WAITING:
        return span(limit)
    return span(limit - (since(job.get("started_at")) or 0))


def _nodes(job: Raw) -> str:
    names = [str(part.get("node")) for part in job.get("placement") or ()]
    return folded_nodes(list(dict.fromkeys(names))) if names else ""


def _where(job: Raw) -> str:
    return f"({job.get('reason') or 'None'})" if job["state"] in WAITING else _nodes(job)


def _gres(job: Raw) -> str:
    types = list(job.get("gpu_types") or ())
    kind = f":{str(types[0]).lower()}" if len(types) == 1 else ""
    gpus = int(job.get("gpus") or 0)
    return f"gres/gpu{kind}:{gpus}" if gpus else "N/A"


def _letter(job: Raw) -> str:
    return "PD" if job["state"] == "held" else str(job.get("letter") or "")


def _word(job: Raw) -> str:
    words = {"held": "pending", "stopping": "completing", "node-failed": "node_fail"}
    return words.get(job["state"], str(job["state"])).upper().replace("-", "_")


FIELDS: dict[str, Field] = {
    "i": ("JOBID", _id),
    "A": ("JOBID", lambda job: str(job["id"])),
    "F": ("ARRAY_JOB_ID", lambda job: str((job.get("array") or {}).get("id") or job["id"])),
    "K": ("ARRAY_TASK_ID", lambda job: str((job.get("array") or {}).get("index", "N/A"))),
    "P": ("PARTITION", lambda job: str(job.get("tenant") or "")),
    "a": ("ACCOUNT", lambda job: str(job.get("tenant") or "")),
    "j": ("NAME", lambda job: str(job.get("name") or "")),
    "u": ("USER", lambda job: str(job.get("user") or "")),
    "t": ("ST", _letter),
    "T": ("STATE", _word),
    "M": ("TIME", _used),
    "l": ("TIME_LIMIT", lambda job: span(job.get("time_limit"))),
    "L": ("TIME_LEFT", _left),
    "D": ("NODES", lambda job: str(job.get("nodes") or 1)),
    "N": ("NODELIST", _nodes),
    "R": ("NODELIST(REASON)", _where),
    "r": ("REASON", lambda job: str(job.get("reason") or "None")),
    "S": ("START_TIME", lambda job: moment(job.get("starts_at") or job.get("started_at"))),
    "V": ("SUBMIT_TIME", lambda job: moment(job.get("submitted_at"))),
    "Q": ("PRIORITY", lambda job: str(job.get("priority") or 0)),
    "p": ("PRIORITY", lambda job: str(job.get("priority") or 0)),
    "b": ("TRES_PER_NODE", _gres),
    "k": ("COMMENT", lambda job: str(job.get("comment") or "")),
    "E": ("DEPENDENCY", lambda job: str(job.get("dependency") or "(null)")),
}
