"""The stand-in: a plain policy that decides while the chosen policy fails.

A policy fails if it raises, returns a plan that is refused, or cannot be made. Running jobs go on, the failed
step is recorded with the reason, and a new era of the journal (`control.eras`) begins under the stand-in. The
chosen policy is tried again after a pause that doubles with each failure, and at once when a command changes
the policy. The stand-in and the time of the next try survive a restart of the plane.

| pause before | |
|---|---|
| the first new try | FIRST_PAUSE |
| each further try | twice as long, up to LONGEST_PAUSE |
| after LONGEST_PAUSE without a failure | FIRST_PAUSE again |
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass

from dovetail.control.chosen_policy import PLAIN_POLICY, ChosenPolicy, NamedPolicy, named_policy
from dovetail.model.units import SECOND

FIRST_PAUSE, LONGEST_PAUSE = 1 * SECOND, 600 * SECOND  # of the wall clock
LAST = "last"  # a stand-in of this name is the policy that was chosen before
KEY = "policy"  # in the store
LONGEST_REASON = 300

log = logging.getLogger("dovetail.plane")


@dataclass(frozen=True, slots=True)
class PolicyFailure:
    """Why the chosen policy does not decide, and which policy does."""

    policy: str
    stand_in: NamedPolicy
    reason: str  # the exception, in one line
    failed_at: int  # on the wall clock
    retry_at: int  # likewise

    @property
    def sentence(self) -> str:
        return (
            f"policy {self.policy} failed ({self.reason}); {self.stand_in.name} decides until it works again"
        )


@dataclass(slots=True)
class Deciding:
    """Which policy was chosen, and whether it decides."""

    chosen: NamedPolicy
    before: NamedPolicy | None = None  # the policy that was chosen before, and had not failed
    failure: PolicyFailure | None = None  # None: the chosen policy decides
    pause: int = 0  # before the last retry, or the next one
    tried_at: int = 0  # when the chosen policy began to decide, on the wall clock
    logged_at: int = 0  # when a failure of the plain policy was logged

    @property
    def sentence(self) -> str:
        """Why a stand-in decides; "" if the chosen policy decides."""
        return "" if self.failure is None else self.failure.sentence

    def choose(self, chosen: NamedPolicy, wall: int) -> None:
        """A command changes the policy."""
        if self.failure is None and chosen != self.chosen:
            self.before = self.chosen
        self.chosen, self.failure, self.pause, self.tried_at = chosen, None, 0, wall

    def failed(self, reason: str, wanted: str, wall: int) -> ChosenPolicy:
        """Record that the chosen policy or its stand-in failed. Returns the policy that decides from now on.

        `wanted` names the stand-in; "" is the plain one.
        """
        stand_in = self._stand_in(wanted)
        lasted = self.failure is None and wall - self.tried_at > LONGEST_PAUSE
        self.pause = FIRST_PAUSE if lasted or not self.pause else min(2 * self.pause, LONGEST_PAUSE)
        line = " ".join(reason.split())[:LONGEST_REASON]
        self.failure = PolicyFailure(self.chosen.name, stand_in.named, line, wall, wall + self.pause)
        return stand_in

    def _stand_in(self, wanted: str) -> ChosenPolicy:
        named = self.before if wanted == LAST else named_policy(wanted, {}) if wanted else None
        if named is None or named == self.chosen or self.failure is not None:
            return PLAIN_POLICY.make()  # also if another stand-in has failed
        try:
            return named.make()
        except Exception as error:
            log.warning("policy %s cannot stand in: %s; %s does", named.name, error, PLAIN_POLICY.name)
            return PLAIN_POLICY.make()

    def retry_due(self, wall: int) -> bool:
        return self.failure is not None and self.failure.retry_at <= wall

    def try_again(self, wall: int) -> None:
        """The chosen policy decides again."""
        self.failure, self.tried_at = None, wall

    def row(self) -> dict[str, str]:
        """As the store keeps it."""
        return {"key": KEY, "value": json.dumps(asdict(self))}


def deciding_from(kept: str | None, era: NamedPolicy) -> Deciding:
    """As the store kept it; an older plane kept the policy in the header of its last era only."""
    if kept is None:
        return Deciding(era)
    said = json.loads(kept)
    failure = said["failure"]
    return Deciding(
        chosen=NamedPolicy(*said["chosen"]),
        before=said["before"] and NamedPolicy(*said["before"]),
        failure=failure and PolicyFailure(**failure | {"stand_in": NamedPolicy(*failure["stand_in"])}),
        pause=said["pause"],
        tried_at=said["tried_at"],
        logged_at=said["logged_at"],
    )
