"""Start-up of a plane that leads: its state from the store, and the engine brought in line with it."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from dovetail.control import clock as clocks
from dovetail.control.chosen_policy import DEFAULT_POLICY, ChosenPolicy, NamedPolicy, reason_of
from dovetail.control.clock import Clock, clock_from
from dovetail.control.eras import enter_era, tenant_of_row
from dovetail.control.job_index import Asked, JobIndex
from dovetail.control.job_reports import JobReports
from dovetail.control.launching import UNKNOWN_GRACE, grace_of
from dovetail.control.ledger import Begin, Ledger
from dovetail.control.limits import KEY as LIMITS_KEY
from dovetail.control.limits import limits_from
from dovetail.control.plane_settings import Settings
from dovetail.control.plane_state import PlaneState
from dovetail.control.quotas import Quotas
from dovetail.control.records import Record
from dovetail.control.recovery import Recovered, recovered
from dovetail.control.request import parse_request, to_job
from dovetail.control.run_times import MOST_READ, RunKind
from dovetail.control.stand_in import KEY, Deciding, deciding_from
from dovetail.control.states import State
from dovetail.control.steady_time import JUMP, STEADY
from dovetail.control.steady_time import KEY as STEADY_KEY
from dovetail.control.store import Store, StoreError
from dovetail.control.stored_requests import with_units
from dovetail.control.unix_accounts import Accounts
from dovetail.engines.contract import Capabilities, Engine
from dovetail.model.cluster import Cluster, with_tenants
from dovetail.model.errors import InputError
from dovetail.model.job import Job
from dovetail.model.units import SECOND

log = logging.getLogger("dovetail.plane")


def loaded(
    store: Store,
    settings: Settings,
    policy: ChosenPolicy | None,
    clock: Clock,
    capabilities: Capabilities,
) -> tuple[PlaneState, Clock]:
    """The state as it was last recorded, and the clock that goes on from there.

    `policy` is the one that was asked for at this start; None keeps the policy that was chosen last.
    """
    tenants = store.tenants()
    cluster = with_tenants(settings.cluster, [tenant_of_row(row) for row in tenants])
    active = store.active()
    asked = _asked(store, active, cluster)
    kept_policy, kept_clock = store.value(KEY), store.value("clock")
    era = store.era()
    deciding = deciding_from(kept_policy, _policy_of(era))
    if policy is not None:
        deciding.choose(policy.named, clocks.steady_now())
    if not settings.set_clock:
        STEADY.resume(store.value(STEADY_KEY))
    now = clock.now() if era is None else 0
    made = _recovered(store, settings, cluster, deciding, policy, now, active, asked)
    clock = clock_from(kept_clock, clock.scale, made.core.now)
    if clock.to_json() != kept_clock:
        store.keep("clock", clock.to_json())
    _say_ahead(clock)
    index = JobIndex(store.states_of)
    for record in active:
        index.add(record, asked[record.request])
    state = PlaneState(
        ledger=Ledger(made.core, index, made.era, capabilities),
        header=made.header,
        deciding=deciding,
        quotas=Quotas(cluster, made.core.policy),
        accounts=Accounts(
            settings.allow_root, {row["name"]: row["account"] for row in tenants if row["account"]}
        ),
        reports=JobReports(store),
        next_seq=store.next_seq(),
        limits=limits_from(store.value(LIMITS_KEY)),
    )
    # Without it, a plane that is killed before its next snapshot would take the wall clock's time again.
    state.ledger.batch.values.append({"key": STEADY_KEY, "value": STEADY.kept()})
    state.ledger.run_times.read((RunKind(*row[:-1]), row[-1]) for row in store.completed_runs(MOST_READ))
    if deciding.row()["value"] != kept_policy:
        state.ledger.batch.values.append(deciding.row())
    enter_era(state, made, clock.now())
    state.ledger.look_again(clock.now())
    return state, clock


def _say_ahead(clock: Clock) -> None:
    """The plane's time never goes back, so it stays ahead after a start with a wrong clock."""
    ahead = clock.now() - clocks.wall_now()
    if clock.scale == 1.0 and ahead > JUMP:
        log.warning("the time of the plane is %.0f s ahead of the wall clock", ahead / SECOND)


def _recovered(
    store: Store,
    settings: Settings,
    cluster: Cluster,
    deciding: Deciding,
    policy: ChosenPolicy | None,
    now: int,
    active: Sequence[Record],
    asked: Mapping[str, Asked],
) -> Recovered:
    """The core under the policy that decides; if that fails already here, under the stand-in."""
    era = store.era()
    seed = settings.seed if policy is not None or era is None else json.loads(era["header"])["seed"]
    templates = {name: one.job for name, one in asked.items()}

    def under(decides: ChosenPolicy) -> Recovered:
        return recovered(store, era, decides.header(cluster, seed), decides.policy, now, active, templates)

    try:
        if policy is None:
            policy = (deciding.chosen if deciding.failure is None else deciding.failure.stand_in).make()
        made = under(policy)
    except (StoreError, OSError):
        raise
    except Exception as error:
        if era is None:  # a new plane: its user is there to be told
            raise
        made = under(deciding.failed(reason_of(error), settings.stand_in, clocks.steady_now()))
    if deciding.sentence:
        log.warning("%s", deciding.sentence)
    for line in made.said:
        log.warning("%s", line)
    return made


def _policy_of(era: Mapping[str, Any] | None) -> NamedPolicy:
    """The policy that decided last; that of a new plane if there is none."""
    if era is None:
        return DEFAULT_POLICY
    header = json.loads(era["header"])
    return NamedPolicy(header["policy"], header["options"])


def _asked(store: Store, records: Sequence[Record], cluster: Cluster) -> dict[str, Asked]:
    """The submissions of these jobs, by id."""
    first = {record.request: record for record in reversed(records)}
    found = {}
    for name, (body, workdir, account) in store.requests(sorted(first)).items():
        request = parse_request(with_units(body))
        record = first[name]
        job: Job | None
        try:
            job = to_job(request, record.id, record.submitted_at, record.tenant, record.user, cluster)
        except InputError:  # the cluster cannot hold it any more
            job = None
        found[name] = Asked(request, body, workdir, job, account)
    return found


def reconcile(state: PlaneState, engine: Engine, clock: Clock) -> None:
    """Start and stop again what a crash may have left undone: engines ignore what they have done already."""
    ledger, now = state.ledger, clock.now()
    core = ledger.core
    known = engine.known()
    expected = set()
    for record in ledger.index:
        attempt = (record.id, record.epoch)
        if record.state is State.RUNNING:
            expected.add(attempt)
            active = core.jobs.get(record.id)
            if active is None or active.spots is None:
                continue
            on = active.now_on  # a job that is to grow may not have all of its grant yet
            if attempt not in known:
                ledger.orders.append(Begin(record, active.shape, on))
            elif engine.capabilities.resize and (
                record.gpus_least is not None or record.id in core.stopping.held
            ):
                ledger.repeat_resize(record, on)
        elif record.state is State.STOPPING:
            expected.add(attempt)
            if attempt in known:
                engine.stop(record.id, record.epoch, record.reason, grace_of(record, ledger.index, clock))
            else:
                ledger.vanished(record, now)
    for job in core.stopping.held:
        holder = ledger.index.records.get(job)
        if holder is None or holder.state not in (State.RUNNING, State.STOPPING):
            ledger.gone(job, now)
        elif holder.state is State.RUNNING and job in core.running and not engine.capabilities.resize:
            ledger.resettled(job, now)
    for job, epoch in known - expected:
        engine.stop(job, epoch, "unknown to the plane", UNKNOWN_GRACE)
