"""One decision of a plane: by the chosen policy, or by the stand-in while the chosen policy fails."""

from __future__ import annotations

import logging

from dovetail.control import clock
from dovetail.control.chosen_policy import PLAIN_POLICY, ChosenPolicy, reason_of
from dovetail.control.eras import change_rules, current_policy
from dovetail.control.plane_state import PlaneState
from dovetail.control.statistics import Statistics
from dovetail.control.store import StoreError
from dovetail.core.core import Step
from dovetail.model.errors import DovetailError, PlanError
from dovetail.model.units import SECOND

LOG_EVERY = 60 * SECOND  # between two log lines on the plain policy, which may fail in each tick

log = logging.getLogger("dovetail.plane")


class CoreFailed(DovetailError):
    """The core failed in the middle of a step: the state in memory is void."""


def decide(state: PlaneState, now: int, stand_in: str, statistics: Statistics) -> Step | None:
    """Give all events to the core, which decides. If the policy fails, the stand-in decides.

    `stand_in` names the policy to take; "" is the plain one.
    """
    if state.deciding.retry_due(clock.steady_now()):
        _try_again(state, now, stand_in, statistics)
    step = _step(state, now)
    while (error := state.ledger.take_policy_error()) is not None:
        if not _replaced(state, str(error), stand_in, now, statistics):
            break
        step = _step(state, now) or step
    if state.snapshot_due():
        try:
            state.add_snapshot()
        except PlanError as error:  # the policy keeps a memory that cannot be stored
            _replaced(state, str(error), stand_in, now, statistics)
    return step


def _step(state: PlaneState, now: int) -> Step | None:
    try:
        return state.ledger.decide(now)
    except (StoreError, OSError):
        raise
    except Exception as error:
        raise CoreFailed(f"{type(error).__name__}: {error}") from error


def _try_again(state: PlaneState, now: int, stand_in: str, statistics: Statistics) -> None:
    """Let the chosen policy decide, after a pause."""
    deciding = state.deciding
    deciding.try_again(clock.steady_now())
    try:
        chosen = deciding.chosen.make()
        change_rules(state, state.header.cluster, chosen, now, f"policy {chosen.name} is tried again")
    except (StoreError, OSError):
        raise
    except Exception as error:  # it cannot even be made
        name = deciding.chosen.name
        other = _failed(state, name, reason_of(error), stand_in, statistics)
        if other.named != current_policy(state).named:
            why = f"policy {name} cannot be made; {other.name} decides"
            change_rules(state, state.header.cluster, other, now, why)
    else:
        log.info("policy %s is tried again", chosen.name)
    state.ledger.batch.values.append(deciding.row())


def _replaced(state: PlaneState, reason: str, stand_in: str, now: int, statistics: Statistics) -> bool:
    """Whether another policy decides from now on. Only the plain policy cannot be replaced."""
    deciding, failing = state.deciding, state.header
    if failing.policy == PLAIN_POLICY.name and dict(failing.options) == PLAIN_POLICY.options:
        _count(state, reason, statistics)
        return False
    other = _failed(state, failing.policy, reason, stand_in, statistics)
    state.ledger.core.memory = None  # the stand-in has no use for it, and it may not be storable
    why = f"policy {failing.policy} failed: {reason}; {other.name} decides"
    change_rules(state, failing.cluster, other, now, why)
    state.ledger.batch.values.append(deciding.row())
    return True


def _failed(
    state: PlaneState, failing: str, reason: str, stand_in: str, statistics: Statistics
) -> ChosenPolicy:
    """Count and log a failure. Returns the policy that decides from now on."""
    other = state.deciding.failed(reason, stand_in, clock.steady_now())
    statistics.policy_failures[failing] = statistics.policy_failures.get(failing, 0) + 1
    pause = state.deciding.pause / SECOND
    log.warning("policy %s failed: %s; %s decides, next try in %g s", failing, reason, other.name, pause)
    return other


def _count(state: PlaneState, reason: str, statistics: Statistics) -> None:
    """The plain policy has failed: nothing is decided in this step, and running jobs go on."""
    name, wall = PLAIN_POLICY.name, clock.steady_now()
    statistics.policy_failures[name] = statistics.policy_failures.get(name, 0) + 1
    if wall - state.deciding.logged_at >= LOG_EVERY:
        state.deciding.logged_at = wall
        log.error("policy %s failed: %s; no job is started until it works again", name, reason)
