"""Submissions: the checks that accept them, and the job records made from them.

A submission is checked once, on the thread of the loop, against the cluster and the quotas of that moment.
An idempotency key of the client makes a repeat harmless: the same key with the same body is one submission.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Mapping
from dataclasses import astuple
from typing import Any

from dovetail.control.arrays import expand_array
from dovetail.control.dependencies import jobs_named
from dovetail.control.disk_reserve import check_space
from dovetail.control.job_index import Asked
from dovetail.control.job_paths import check_paths
from dovetail.control.limits import AskedFor
from dovetail.control.plane import Plane
from dovetail.control.plane_state import PlaneState, Submitted
from dovetail.control.problems import RequestError
from dovetail.control.records import Record
from dovetail.control.request import JobRequest, to_job
from dovetail.control.run_times import with_estimate
from dovetail.control.store import Store
from dovetail.control.tokens import Caller
from dovetail.model.errors import InputError, NeverFits
from dovetail.model.job import Job

ALPHABET = "23456789abcdefghjkmnpqrstuvwxyz"  # no characters that look alike, and few vowels
LONGEST_TENANT = 64
MOST_IDS = 100  # in an answer; the others follow from the array
MOST_TENANTS = 20  # in a warning


class WrongTenant(InputError):
    """A token of one tenant was used to submit for another."""


def submit(
    plane: Plane, caller: Caller, request: JobRequest, body: Mapping[str, Any], key: str | None = None
) -> Submitted:
    """Accept a job, or an array of jobs; returns when it is on record."""
    tenant = tenant_of(caller, request)
    check_paths(request, plane.settings.folder)
    check_space(plane.settings.folder)
    digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).digest()

    def run(state: PlaneState, now: int) -> Submitted:
        if key is not None and (known := _known_key(state, plane.store, caller, key, digest)):
            return known
        submitted = _accepted(state, plane.store, caller, tenant, request, body, now)
        if key is not None:
            _keep_key(state, caller, key, digest, submitted, now)
        return submitted

    return plane.change(run)


NOT_SAVED = (
    "the job declares no checkpoint: each time its number of GPUs changes, it begins anew; "
    "say how long it takes to save, as in checkpoint: {grace: 60s} or --grace 60s"
)


def tenant_of(caller: Caller, request: JobRequest) -> str:
    """The tenant that a request is for: the tenant of the token; an admin may name another."""
    wanted = request.tenant_asked or caller.tenant
    if not caller.sees(wanted):  # the answer does not tell whether the other tenant exists
        raise WrongTenant(
            f"this token submits for {caller.tenant}, not {wanted}; leave queue out or ask for a token"
        )
    if len(wanted) > LONGEST_TENANT:
        raise RequestError.at("/queue", f"the name of a tenant has at most {LONGEST_TENANT} characters")
    return wanted


def checked_job(
    state: PlaneState, caller: Caller, tenant: str, request: JobRequest, job_id: str, now: int
) -> Job:
    """The job as the core sees it. A job above a limit of its user, or that could never start, is refused."""
    cluster = state.header.cluster
    job = to_job(request, job_id, now, tenant, caller.user, cluster)
    count = 1 if request.array is None else len(expand_array(request.array)[0])
    wanted = AskedFor(request.priority, job.shape.load, request.time, count)
    state.limits.check_job(caller, tenant, wanted, state.ledger.index.active_of)
    job = with_estimate(job, request, state.ledger.run_times)
    if over := state.quotas.too_much(job):
        raise NeverFits(over.refusal)
    return job


def fresh_id(state: PlaneState, store: Store) -> str:
    """A random id that no job or array has."""
    while True:
        word = "".join(secrets.choice(ALPHABET) for _ in range(6))
        taken = word in state.ledger.index.asked or store.requests([word])
        if not word.isdigit() and not taken:
            return word


# --- idempotency keys -------------------------------------------------------------------------------


def _known_key(state: PlaneState, store: Store, caller: Caller, key: str, digest: bytes) -> Submitted | None:
    found = state.keys.get((caller.token, key))
    if found is None:
        row = store.remembered(caller.token, key)
        found = (row[0], Submitted(*row[1])) if row else None
    if found is None:
        return None
    if found[0] != digest:
        raise InputError(f"the idempotency key {key!r} was used for another submission; use a new key")
    return found[1]


def _keep_key(
    state: PlaneState, caller: Caller, key: str, digest: bytes, submitted: Submitted, now: int
) -> None:
    state.keys[caller.token, key] = (digest, submitted)
    state.ledger.batch.keys.append(
        {
            "owner": caller.token,
            "key": key,
            "digest": digest,
            "answer": json.dumps(astuple(submitted)),
            "time": now,
        }
    )


# --- records ----------------------------------------------------------------------------------------


def _accepted(
    state: PlaneState,
    store: Store,
    caller: Caller,
    tenant: str,
    request: JobRequest,
    body: Mapping[str, Any],
    now: int,
) -> Submitted:
    ledger = state.ledger
    notes = _warnings(state, store, caller, tenant)
    if request.resources.span is not None and request.checkpoint is None:
        notes.append(NOT_SAVED)
    word = fresh_id(state, store)
    indices: tuple[int, ...] = ()
    at_most: int | None = None
    if request.array is not None:
        indices, at_most = expand_array(request.array)
    first = f"{word}_{indices[0]}" if indices else word
    account = state.accounts.accepted(tenant, admin=caller.admin)
    job = checked_job(state, caller, tenant, request, first, now)
    _check_dependencies(state, store, caller, request)
    begin = request.begins_at(now)
    common: dict[str, Any] = {
        "request": word,
        "name": request.name,
        "kind": request.kind,
        "tenant": tenant,
        "user": caller.user,
        "model": request.model,
        "gpus": job.shape.gpus,
        "gpus_least": job.traits.least,
        "load": job.shape.load,
        "nodes": request.node_count,
        "cpus": job.shape.cpus or None,
        "memory": job.shape.memory or None,
        "types": ",".join(job.shape.types),
        "dependency": request.dependency,
        "at_most": at_most,
        "begin_at": begin if begin is not None and begin > now else None,
        "time_limit": request.time,
        "submitted_at": now,
        "priority": request.priority,
        "held_by": "user" if request.hold else "",
    }
    records = []
    for index in indices or (None,):
        name = word if index is None else f"{word}_{index}"
        array = None if index is None else word
        records.append(Record(id=name, seq=state.next_seq, array=array, task=index, **common))
        state.next_seq += 1
    ledger.batch.requests.append(
        {"id": word, "body": json.dumps(body), "workdir": request.workdir, "account": account}
    )
    ledger.submit(records, Asked(request, body, request.workdir, job, account), now)
    return Submitted(word, [r.id for r in records[:MOST_IDS]], len(records), bool(indices), notes)


def _warnings(state: PlaneState, store: Store, caller: Caller, tenant: str) -> list[str]:
    """An admin may have mistyped the tenant; other users cannot name another tenant."""
    tenants = state.header.cluster.tenants
    if tenant == caller.tenant or tenant in tenants:
        return []
    if store.knows("tenant", tenant) or any(r.tenant == tenant for r in state.ledger.batch.added):
        return []
    names = sorted(store.known_tenants() | tenants.keys())
    more = f" and {len(names) - MOST_TENANTS} more" if len(names) > MOST_TENANTS else ""
    named = ", ".join(names[:MOST_TENANTS]) + more
    return [f"tenant {tenant} has no quota and no jobs yet; known tenants: {named or 'none'}"]


def _check_dependencies(state: PlaneState, store: Store, caller: Caller, request: JobRequest) -> None:
    if not request.dependency:
        return
    wanted = jobs_named(request.dependency)
    index = state.ledger.index
    known = store.tenants_of(wanted)
    known |= {r.id: r.tenant for r in index if r.id in wanted}
    known |= {r.array: r.tenant for r in index if r.array in wanted and r.array is not None}
    for name in sorted(wanted):
        if name not in known or not caller.sees(known[name]):
            raise InputError(
                f"the dependency names {name!r}, and there is no such job; see dovetail ps --all"
            )
