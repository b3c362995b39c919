"""Limits on what users may ask for: of a role, a tenant and a user, refused in one place."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.control import harness
from tests.control import test_api as api
from tests.control.test_api import Answer, Live
from tests.control.test_policy_failures import up

from dovetail.control.limits import DEFAULTS, AskedFor, Limits, OverLimit, limits_from
from dovetail.control.tokens import Caller
from dovetail.model.units import HOUR, WHOLE

MOST = DEFAULTS["role", "user"]["priority"] or 0


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    """A plane with four GPUs under the policy `priority`."""
    with api.living(tmp_path / "plane", api.FAST, virtual="1x4:A100") as made:
        yield made


def gpus(count: int) -> dict[str, Any]:
    return {"resources": {"gpus": count}}


def limited(live: Live, kind: str, name: str, **limits: Any) -> Any:
    answer = live.ask("PUT", f"limits/{kind}/{name}", "admin", limits)
    assert answer.status == 200, answer
    return answer.json


def asked(live: Live, user: str = "ann", path: str = "jobs", **request: Any) -> Answer:
    return live.ask("POST", path, user, {"run": "true", **request})


def refused(answer: Answer, *words: str) -> bool:
    """Whether it is a refusal by a limit, in one line that has these words."""
    assert (answer.status, answer.json["type"]) == (422, "/problems/over-limit"), answer
    detail = answer.json["detail"]
    assert "\n" not in detail
    for word in (*words, "dovetail limits set"):
        assert word in detail, detail
    return True


# --- priority -----------------------------------------------------------------------------------------


def test_a_user_cannot_stop_others_work_by_a_high_priority(live: Live) -> None:
    """The attack: any user token asked for priority 1,000,000, and preempted everybody."""
    victim = live.submit("bob", **gpus(4), time="1h")
    live.until(victim, "running")
    for path in ("jobs", "plan"):
        for priority in (1_000_000, "urgent", MOST + 1):
            answer = asked(live, path=path, priority=priority, **gpus(4))
            assert refused(answer, "role user", f"{MOST}", "limits set user ann --priority")
    assert answer.json["errors"][0]["pointer"] == "/priority"
    waiting = live.submit("ann", **gpus(4), time="1h")
    raised = live.ask("POST", f"jobs/{waiting}/priority", "ann", {"priority": 1_000_000})
    assert refused(raised, "1,000,000", "role user")
    assert live.get(f"jobs/{waiting}")["priority"] == 0
    assert live.get(f"jobs/{victim}")["state"] == "running"
    assert [job["id"] for job in live.get("jobs?user=ann")["items"]] == [waiting]


def test_up_to_the_limit_a_user_may_ask_and_an_admin_beyond(live: Live) -> None:
    held = live.submit("ann", priority=MOST, hold=True)
    assert live.get(f"jobs/{held}")["priority"] == MOST
    assert asked(live, path="plan", priority=MOST, **gpus(1)).status == 200
    urgent = live.submit("admin", priority=1_000_000, hold=True)
    assert live.get(f"jobs/{urgent}")["priority"] == 1_000_000
    assert live.ask("POST", f"jobs/{held}/priority", "admin", {"priority": 5_000}).json["priority"] == 5_000
    answer = live.ask("POST", f"jobs/{held}/priority", "ann", {"priority": 4_000})
    assert refused(answer, "4,000")  # lower than an admin made it, and still above
    assert live.ask("POST", f"jobs/{held}/priority", "ann", {"priority": 1}).json["priority"] == 1


def test_all_members_of_an_array_are_changed_or_none(live: Live) -> None:
    array = live.submit("ann", array="0-2", hold=True)
    assert refused(live.ask("POST", f"jobs/{array}/priority", "ann", {"priority": 101}), "101")
    assert {job["priority"] for job in live.get(f"jobs?array={array}")["items"]} == {0}


# --- which limit counts -------------------------------------------------------------------------------


def test_a_limit_of_a_user_goes_before_that_of_the_tenant_and_that_of_the_role(live: Live) -> None:
    limited(live, "role", "user", priority=10)
    assert refused(asked(live, priority=11), "role user is 10", "limits set user ann --priority 11")
    limited(live, "tenant", "red", priority=20)
    assert asked(live, priority=20, hold=True).status == 201
    assert refused(asked(live, priority=21), "tenant red is 20", "limits set tenant red --priority 21")
    assert refused(asked(live, "bob", priority=20), "role user is 10")
    limited(live, "user", "ann", priority=1_000)
    assert asked(live, priority="urgent", hold=True).status == 201
    assert refused(asked(live, "abe", priority="urgent"), "tenant red is 20")
    limited(live, "user", "ann", priority=None)
    assert asked(live, priority=1_000_000, hold=True).status == 201
    assert live.ask("DELETE", "limits/user/ann").status == 204
    assert refused(asked(live, priority=1_000), "tenant red is 20")
    assert live.ask("DELETE", "limits/tenant/red").status == 204
    assert live.ask("DELETE", "limits/role/user").status == 204
    assert asked(live, priority=MOST, hold=True).status == 201


def test_what_a_change_leaves_out_stays(live: Live) -> None:
    limited(live, "user", "ann", priority=7, gpus=2)
    assert limited(live, "user", "ann", time=3_600)["limits"] == {"priority": 7, "gpus": 2, "time": 3_600}
    assert limited(live, "user", "ann", gpus=None)["limits"] == {"priority": 7, "gpus": None, "time": 3_600}
    assert limited(live, "user", "ann")["limits"] == {"priority": 7, "gpus": None, "time": 3_600}


def test_a_limit_can_be_set_for_admins_too(live: Live) -> None:
    limited(live, "role", "admin", priority=50)
    assert refused(asked(live, "admin", priority=51), "role admin", "limits set role admin --priority 51")
    limited(live, "tenant", "default", priority=1)  # it does not hold for admins
    assert asked(live, "admin", priority=50, hold=True).status == 201


# --- GPUs, time, jobs ---------------------------------------------------------------------------------


def test_a_job_may_not_ask_for_more_gpus_than_the_limit(live: Live) -> None:
    limited(live, "tenant", "red", gpus=2)
    for path in ("jobs", "plan"):
        assert refused(asked(live, path=path, **gpus(3)), "3 GPUs", "tenant red is 2 GPUs", "--gpus 3")
        shared = asked(live, path=path, **gpus(4), gpu_share=0.6)
        assert refused(shared, "2.4 GPUs", "--gpus 3")
    assert asked(live, **gpus(4), gpu_share=0.5, hold=True).status == 201
    assert asked(live, **gpus(2), hold=True).status == 201
    assert asked(live, "bob", **gpus(3), hold=True).status == 201


def test_under_a_limit_on_time_a_job_needs_a_time_limit(live: Live) -> None:
    limited(live, "user", "ann", time=7_200)
    for path in ("jobs", "plan"):
        assert refused(asked(live, path=path, **gpus(1)), "has no time limit", "user ann is 2 h")
        assert refused(asked(live, path=path, time="3h", **gpus(1)), "3 h", "2 h", "--time 10800s")
    assert asked(live, time="2h", hold=True).status == 201


def test_jobs_of_a_user_are_counted_queued_and_running(live: Live) -> None:
    limited(live, "user", "ann", jobs=3)
    running = live.submit("ann", **gpus(4))
    live.until(running, "running")
    live.submit("ann", **gpus(4))
    for path in ("jobs", "plan"):
        answer = asked(live, path=path, array="0-1")
        assert refused(answer, "2 more jobs", "user ann would have 4", "user ann is 3", "--jobs 4")
    held = live.submit("ann", hold=True)
    assert refused(asked(live), "one more job")
    assert asked(live, "abe", hold=True).status == 201
    live.engine.end(running)
    live.until(running, "completed")
    assert live.ask("POST", f"jobs/{held}/cancel", "ann").status == 200
    live.submit("ann", array="0-1", hold=True)
    assert refused(asked(live), "one more job")


def test_a_repeated_submission_is_answered_as_before_at_the_limit(live: Live) -> None:
    limited(live, "user", "ann", jobs=1)
    key = {"Idempotency-Key": "once"}
    first = live.ask("POST", "jobs", "ann", {"run": "true", "hold": True}, key)
    again = live.ask("POST", "jobs", "ann", {"run": "true", "hold": True}, key)
    assert (first.status, again.json) == (201, first.json)


def test_jobs_of_a_tenant_are_counted_together_besides(live: Live) -> None:
    limited(live, "tenant", "red", jobs=2)
    live.submit("ann", hold=True)
    live.submit("abe", hold=True)
    assert refused(asked(live), "tenant red would have 3", "limits set tenant red --jobs 3")
    assert live.ask("POST", "jobs", "admin", {"run": "true", "queue": "red", "hold": True}).status == 201
    limited(live, "tenant", "red", jobs=100)
    limited(live, "role", "user", jobs=1)
    assert refused(asked(live), "user ann would have 2", "role user is 1")


# --- who sees what ------------------------------------------------------------------------------------


def test_a_user_sees_the_own_limits_and_an_admin_all(live: Live) -> None:
    limited(live, "tenant", "blue", gpus=1)
    limited(live, "tenant", "red", jobs=50)
    limited(live, "user", "ann", priority=7, time=3_600)
    live.submit("ann", hold=True, time="1h")
    live.submit("abe", hold=True)
    mine = live.get("limits", "ann")
    assert [(one["what"], one["most"], one["kind"], one["used"]) for one in mine["own"]] == [
        ("priority", 7, "user", None),
        ("gpus", None, None, None),
        ("time", 3_600, "user", None),
        ("jobs", 10_000, "role", 1),
        ("jobs", 50, "tenant", 2),
    ]
    assert [(row["kind"], row["name"]) for row in mine["items"]] == [
        ("role", "user"),
        ("tenant", "red"),
        ("user", "ann"),
    ]
    rows = {(row["kind"], row["name"]): row for row in live.get("limits")["items"]}
    assert rows.keys() == {
        ("role", "user"),
        ("role", "admin"),
        ("tenant", "blue"),
        ("tenant", "red"),
        ("user", "ann"),
    }
    assert rows["role", "user"] == {
        "kind": "role",
        "name": "user",
        "limits": {"priority": 100, "jobs": 10_000},
        "default": True,
    }
    assert live.get("limits", "eve")["own"] == []  # a viewer asks for nothing


def test_a_name_that_nothing_has_is_taken_with_a_warning(live: Live) -> None:
    (note,) = limited(live, "user", "anne", priority=7)["notes"]
    assert "user anne" in note
    assert limited(live, "user", "ann", priority=7)["notes"] == []
    assert limited(live, "tenant", "blue", priority=7)["notes"] == []


def test_wrong_limits_are_refused(live: Live) -> None:
    for path, body in (
        ("limits/role/viewer", {"priority": 1}),
        ("limits/role/king", {"priority": 1}),
        ("limits/group/red", {"priority": 1}),
        ("limits/user/ann", {"gpus": -1}),
        ("limits/user/ann", {"gpus": 1.5}),
        ("limits/user/ann", {"time": 0}),
        ("limits/user/ann", {"cores": 1}),
        ("limits/user/a%20b", {"gpus": 1}),
    ):
        assert live.ask("PUT", path, "admin", body).status == 422, (path, body)
    assert len(live.get("limits")["items"]) == 2
    assert live.ask("DELETE", "limits/user/ann").status == 404


# --- on the command line ------------------------------------------------------------------------------


def dovetail(folder: Path, *words: str, token: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ) | ({} if token is None else {"DOVETAIL_TOKEN": token})
    return subprocess.run(
        [sys.executable, "-m", "dovetail.cli", *words],
        capture_output=True,
        text=True,
        check=False,
        env=environment | {"DOVETAIL_STATE": str(folder / "state")},
    )


def test_the_command_line_sets_shows_and_refuses_also_after_a_restart(tmp_path: Path) -> None:
    with up(tmp_path, "--allow-root") as (client, _):
        token = client.create_token("ada", tenant="lab", user="ada")["token"]
        done = dovetail(tmp_path, "submit", "--priority", "urgent", "--", "true", token=token)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert done.stderr.startswith(
            "error: priority: the job asks for priority 1,000, and the limit of role user is 100; "
            "ask for 100 or less, or let an administrator raise it "
            "(dovetail limits set user ada --priority 1000)"
        )
        planned = dovetail(tmp_path, "plan", "--priority", "urgent", token=token)
        assert (planned.returncode, planned.stderr) == (2, done.stderr)
        remedy = ["limits", "set", "user", "ada", "--priority", "1000", "--gpus", "1", "--time", "2d"]
        assert dovetail(tmp_path, *remedy, token=token).returncode == 2  # for administrators only
        done = dovetail(tmp_path, *remedy)
        assert (done.returncode, done.stdout) == (
            0,
            "limits of user ada: priority 1,000, gpus 1, time 2 d\n",
        )
        words = ("submit", "--hold", "--priority", "urgent", "--time", "1h", "--", "true")
        assert dovetail(tmp_path, *words, token=token).returncode == 0
    with up(tmp_path, "--allow-root") as (client, _):
        shown = dovetail(tmp_path, "limits", "list", token=token).stdout
        assert "priority of a job" in shown
        assert "user ada" in shown
        done = dovetail(tmp_path, "submit", "--gpus", "2", "--time", "1h", "--", "true", token=token)
        assert (done.returncode, "2 GPUs" in done.stderr) == (2, True)
        dropped = dovetail(tmp_path, "limits", "drop", "user", "ada")
        assert dropped.returncode == 0
        done = dovetail(tmp_path, "submit", "--priority", "urgent", "--", "true", token=token)
        assert (done.returncode, "role user" in done.stderr) == (2, True)
        client.cancel(*[job.id for job in client.jobs(active=True)])
        harness.eventually(lambda: not list(client.jobs(active=True)), "the end of all jobs")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("limits set user ada", "nothing to set"),
        ("limits set group ada --gpus 1", "no kind of limit is named 'group'"),
        ("limits set user ada --gpus many", "--gpus 'many' is not a whole number"),
        ("limits set user ada --gpus -1", "--gpus '-1' is not a whole number"),
        ("limits set user ada --time 2", "--time 2 has no unit; write 2h"),
        ("limits set user ada --time soon", "--time: 'soon'"),
    ],
)
def test_a_usage_error_is_one_clear_line(tmp_path: Path, words: str, told: str) -> None:
    done = dovetail(tmp_path, *words.split())
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert told in done.stderr


# --- the values ---------------------------------------------------------------------------------------


def test_limits_are_kept_as_they_were_set() -> None:
    limits = Limits()
    limits.set(("user", "ann"), {"priority": None, "time": 5 * HOUR})
    limits.set(("role", "user"), {"jobs": 3})
    again = limits_from(limits.row()["value"])
    assert again == limits
    assert again.of(("role", "user")) == {"priority": 100, "jobs": 3}
    assert limits_from(None) == Limits()


def test_exactly_the_limit_is_allowed() -> None:
    limits, ann = Limits(), Caller("t", "red", "ann", "user")
    limits.set(("user", "ann"), {"priority": -5, "gpus": 2, "time": HOUR, "jobs": 10})
    limits.check_job(ann, "red", AskedFor(-5, 2 * WHOLE, HOUR, 4), lambda kind, name: 6)
    for wanted in (
        AskedFor(-4, 2 * WHOLE, HOUR, 4),
        AskedFor(-5, 2 * WHOLE + 1, HOUR, 4),
        AskedFor(-5, 2 * WHOLE, HOUR + 1, 4),
        AskedFor(-5, 2 * WHOLE, None, 4),
        AskedFor(-5, 2 * WHOLE, HOUR, 5),
    ):
        with pytest.raises(OverLimit):
            limits.check_job(ann, "red", wanted, lambda kind, name: 6)
