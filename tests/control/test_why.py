"""Jobs that cannot start: refused at submission if they never fit, explained later by `why`."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from tests.control import test_api as api

from dovetail.control.quotas import Quotas
from dovetail.control.why import out_of_use
from dovetail.core.core import Core
from dovetail.engines.local.devices import discover
from dovetail.model.cluster import Tenant, parse_cluster, with_tenants
from dovetail.model.event import DRAINED, SUBMITTED
from dovetail.model.job import Job, Shape
from dovetail.policies.registry import POLICIES


@pytest.fixture
def live(tmp_path: Path) -> Iterator[api.Live]:
    with api.living(tmp_path / "plane", api.FAST, "2x4:A100") as made:
        made.ask("PUT", "policy", "admin", {"name": "default"})
        yield made


def refused(live: api.Live, who: str = "ann", path: str = "jobs", **request: object) -> str:
    answer = live.ask("POST", path, who, {"run": "true", **request})
    assert answer.status == 422, answer
    assert answer.json["type"] == "/problems/never-fits"
    return str(answer.json["detail"])


# --- what the machine has not -------------------------------------------------------------------------


def test_a_pretended_node_has_what_the_machine_has() -> None:
    found = discover("2x4:A100,1x2:V100")
    assert {(node.cpus, node.memory) for node in found.cluster.nodes} == {(found.cpus, found.memory)}


@pytest.mark.parametrize(
    ("resources", "words"),
    [
        ({"memory": "900TB"}, "900 TiB of memory"),
        ({"cpus": 90_000}, "90000 CPUs"),
        ({"cpus": 90_000, "gpus": 1}, "CPUs"),
    ],
)
def test_more_than_the_machine_has_is_refused(
    live: api.Live, resources: dict[str, object], words: str
) -> None:
    for path in ("jobs", "plan"):
        assert words in refused(live, path=path, resources=resources)


# --- what the tenant may not have ---------------------------------------------------------------------


def test_more_than_a_tenant_may_ever_hold_is_refused(live: api.Live) -> None:
    for name, row in {
        "lab": {"quota": 1},
        "red": {"quota": 2, "parent": "lab", "borrow": 1},
        "blue": {"quota": 1, "parent": "lab"},
    }.items():
        assert live.ask("PUT", f"tenants/{name}", "admin", row).status == 200
    detail = refused(live, resources={"gpus": 4})
    assert detail.startswith(
        "the job asks for 4 GPUs, and tenant red (under lab) may hold 3 at most; ask for fewer"
    )
    assert "dovetail tenant set red" in detail
    assert refused(live, path="plan", resources={"gpus": 4}) == detail
    assert "may hold 4 at most" in refused(live, "bob", nodes=2, resources={"gpus": 4}), "all of its cohort"
    assert live.submit("ann", resources={"gpus": 3})
    assert live.submit("ann", array="0-9", resources={"gpus": 2}), "each of an array may start"


def test_when_a_quota_shrinks_why_says_so(live: api.Live) -> None:
    bobs = live.submit("bob", nodes=2, resources={"gpus": 4})
    job = live.submit("ann", resources={"gpus": 4})
    assert live.ask("PUT", "tenants/red", "admin", {"quota": 2}).status == 200
    found = live.get(f"jobs/{job}/why", "ann")
    assert found["sentence"] == "Tenant red may hold 2 GPUs at most; it asks for 4."
    assert (found["reason"], found["starts_at"], found["holders"]) == ("AssocGrpGRES", None, [])
    assert found["remedies"] == [], "no GPU is free: another quota alone would not let it start"
    live.engine.end(bobs)
    live.until(bobs, "completed")
    found = live.get(f"jobs/{job}/why", "ann")
    told = [(one["kind"], one["by"], one["quota"], one["ask"]) for one in found["remedies"]]
    assert told == [("resubmit", "user", None, {"resources": {"gpus": 2}}), ("tenant", "admin", 4, None)]
    assert "dovetail tenant set red --quota 4" in found["remedy"]
    assert live.ask("PUT", "tenants/red", "admin", {"quota": 4}).status == 200
    live.until(job, "running")


def alone(policy: str, gpus: int, milli: int = 1_000, **tenant: Any) -> int | None:
    """The most that the only tenant may hold, if that is less than a job asks for."""
    cluster = with_tenants(parse_cluster("2x4"), [Tenant("t", **tenant)])
    job = Job(id="j", arrived_at=10, shape=Shape(gpus, 1, milli), tenant="t", user="u", work=60, estimate=60)
    found = Quotas(cluster, POLICIES.make(policy)).too_much(job)
    return None if found is None else found.most


@pytest.mark.parametrize("policy", POLICIES.names())
def test_a_limit_holds_under_every_policy(policy: str) -> None:
    assert alone(policy, 3, limit=2) == 2
    assert alone(policy, 2, limit=2) is None
    assert alone(policy, 1, limit=0) == 0


@pytest.mark.parametrize("policy", POLICIES.names())
def test_who_takes_no_notice_of_quotas_refuses_nobody_for_them(policy: str) -> None:
    """Whatever is refused at submit, the policy would never have started; and the other way round."""
    for tenant in (Tenant("t", quota=2), Tenant("t", quota=2, borrow=1), Tenant("t")):
        cluster = with_tenants(parse_cluster("2x4"), [tenant])
        job = Job(id="j", arrived_at=10, shape=Shape(4, 1), tenant="t", user="u", work=60, estimate=60)
        core = Core(cluster, POLICIES.make(policy))
        core.handle(10, [(10, SUBMITTED, "j", 0, job)])
        for _ in range(5):
            if core.alarm is not None:
                core.handle(core.alarm, [])
        starts = "j" in core.running
        assert (Quotas(cluster, POLICIES.make(policy)).too_much(job) is None) >= starts


def test_half_a_gpu_counts_for_half() -> None:
    assert alone("kueue", 1, 500, quota=1) is None
    assert alone("kueue", 1, 500, quota=0) == 0


# --- what is out of use -------------------------------------------------------------------------------


def test_why_and_plan_name_the_node_that_is_drained(live: api.Live) -> None:
    assert live.ask("POST", "nodes/n1/drain", "admin", {"reason": "a fan"}).status == 200
    first = live.submit("ann", resources={"gpus": 4})
    live.until(first, "running")
    back = "an administrator can bring n1 back:  dovetail resume n1"
    asks = {"run": "true", "resources": {"gpus": 4}}
    plan = live.ask("POST", "plan", "ann", asks).json
    assert plan["fits"] is True
    assumed = "no estimate given: assumed 1 h"
    assert plan["notes"] == [assumed, "4 GPUs of n1 are out of use: drained (a fan).", back]
    plan = live.ask("POST", "plan", "ann", {**asks, "expected": "10m"}).json
    assert assumed not in plan["notes"]
    job = live.submit("ann", resources={"gpus": 4})
    assert back not in live.ask("POST", "plan", "ann", asks).json["notes"], "the job that waits takes it"
    found = live.get(f"jobs/{job}/why", "ann")
    assert "4 GPUs of n1 are out of use: drained (a fan)." in found["sentence"]
    assert [one["kind"] for one in found["remedies"]] == ["priority", "resume", "cancel", "wait"]
    assert back in found["remedy"]
    assert found["starts_at"]["likely"] is not None, "when the first has ended"
    assert live.ask("POST", "nodes/n1/resume", "admin").status == 200
    assert live.until(job, "running")


def test_what_only_the_drained_node_could_hold_has_no_start_to_forecast(live: api.Live) -> None:
    assert live.ask("POST", "nodes/n1/drain", "admin").status == 200
    wanted = {"nodes": 2, "resources": {"gpus": 4}}
    job = live.submit("ann", **wanted)
    found = live.get(f"jobs/{job}/why", "ann")
    assert found["sentence"].endswith(
        "4 GPUs of n1 are out of use: drained. Without them it can never start."
    )
    assert found["remedy"].endswith("dovetail resume n1")
    assert found["starts_at"] is None
    plan = live.ask("POST", "plan", "ann", {"run": "true", **wanted}).json
    assert (plan["fits"], plan["starts_at"], plan["placement"]) == (False, None, [])
    assert "out of use" in plan["detail"]


def test_a_drained_node_of_another_type_is_not_told() -> None:
    core = Core(parse_cluster("1x4:A100,2x4:V100,1x4:A100"), POLICIES.make("fifo"))
    for name in ("n1", "n2", "n3"):
        core.handle(1, [(1, DRAINED, name, 0, "old")])
    found = out_of_use(core, Shape(1, 4, types=("A100",)))
    assert found is not None
    assert (found.nodes, found.needed) == (("n3",), False)
    one = out_of_use(core, Shape(2, 4, types=("V100",)))
    assert one is not None
    assert (one.nodes, one.needed) == (("n1", "n2"), True)
    assert out_of_use(Core(parse_cluster("1x4"), POLICIES.make("fifo")), Shape(1, 4)) is None


# --- what is told of jobs that are over, or were not meant so -------------------------------------------


def test_a_job_that_had_ended_is_shown_as_it_is_when_it_is_cancelled(live: api.Live) -> None:
    over = live.submit("ann", resources={"gpus": 1})
    live.until(over, "running")
    live.engine.end(over)
    ended = live.until(over, "completed")
    assert live.ask("POST", f"jobs/{over}/cancel", "ann").json == ended
    held = live.submit("ann", hold=True)
    answer = live.ask("POST", "jobs/cancel", "ann", {"ids": [over, held, held, "zzzzzz"]}).json
    assert answer == {"count": 1, "cancelled": [held], "already_over": [over], "unknown": ["zzzzzz"]}


def test_the_lists_of_a_cancel_are_bounded(live: api.Live) -> None:
    array = live.submit("ann", array="0-1499", hold=True)
    first = live.ask("POST", "jobs/cancel", "ann", {"ids": [array]})
    assert (first.json["count"], len(first.json["cancelled"])) == (1_500, 1_000)
    again = live.ask("POST", "jobs/cancel", "ann", {"ids": [array]})
    assert (again.json["count"], len(again.json["already_over"])) == (0, 1_000)
    assert max(len(first.text), len(again.text)) < 200_000


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "jobs/{}"), ("GET", "jobs/{}/why"), ("POST", "jobs/{}/cancel"), ("GET", "nodes/{}")],
)
def test_what_is_not_found_is_named(live: api.Live, method: str, path: str) -> None:
    answer = live.ask(method, path.format("k3v9qz"))
    assert answer.status == 404
    assert "'k3v9qz'" in answer.json["detail"]


def test_the_policy_tells_what_is_in_force(live: api.Live) -> None:
    found = live.get("policy")
    assert (found["name"], found["default"], found["options"]) == ("dovetail", True, {})
    assert (found["in_force"]["aging"], found["in_force"]["preempt"]) == (5.0, True)
    plain = live.ask("PUT", "policy", "admin", {"name": "kueue", "options": {"whole": True}}).json
    assert (plain["default"], plain["options"], plain["in_force"]["whole"]) == (False, {"whole": True}, True)
    assert live.ask("PUT", "policy", "admin", {"name": "default"}).json == found


def test_a_tenant_that_nobody_knows_is_noted(live: api.Live) -> None:
    live.ask("PUT", "tenants/lab", "admin", {})
    body = {"run": "true", "queue": "rde"}
    first = live.ask("POST", "jobs", "admin", body, {"Idempotency-Key": "k"})
    assert first.status == 201
    (note,) = first.json["notes"]
    assert note == "tenant rde has no quota and no jobs yet; known tenants: blue, default, lab, red"
    assert live.ask("POST", "jobs", "admin", body, {"Idempotency-Key": "k"}).json == first.json
    assert live.ask("POST", "jobs", "admin", body).json["notes"] == [], "it has a job by now"
    for queue in ("lab", "red", "default"):
        assert live.ask("POST", "jobs", "admin", {"run": "true", "queue": queue}).json["notes"] == []
    assert live.ask("POST", "jobs", "ann", {"run": "true"}).json["notes"] == []


def test_a_message_about_a_tenant_is_not_said_twice(live: api.Live) -> None:
    problem = live.ask("PUT", "tenants/red", "admin", {"parent": "nosuch"}).json
    assert problem["detail"] == "parent: no tenant is named nosuch; make it first"
    assert problem["errors"] == [{"pointer": "/parent", "detail": "no tenant is named nosuch; make it first"}]


def test_shared_devices_tell_whose_part_is_whose(live: api.Live) -> None:
    half = {"resources": {"gpus": 1}, "gpu_share": 0.5}
    mine, other = live.submit("ann", **half), live.submit("bob", **half)
    for job in (mine, other):
        assert live.until(job, "running")["gpu_share"] == 0.5
    device = next(gpu for gpu in live.get("gpus", "ann")["items"] if gpu["job"] == mine)
    assert (device["used"], device["used_milli"], device["state"]) == (1.0, 1_000, "shared")
    assert (device["jobs"], device["shares"], device["others"]) == ([mine], [{"job": mine, "milli": 500}], 1)
    everything = next(gpu for gpu in live.get("gpus")["items"] if gpu["jobs"])
    assert everything["shares"] == [{"job": mine, "milli": 500}, {"job": other, "milli": 500}]
    plan = live.ask("POST", "plan", "ann", {"run": "true", **half}).json
    assert [place["gpus"] for place in plan["placement"]] == [0.5]


def test_a_job_tells_what_it_asked_for_and_when_it_may_begin(live: api.Live) -> None:
    job = live.submit("ann", begin="+2h", resources={"gpus": 1, "cpus": 0.5, "memory": "64MB"})
    shown = live.get(f"jobs/{job}", "ann")
    assert (shown["cpus"], shown["memory"]) == (0.5, 64 << 20)
    assert shown["begin_at"] > shown["submitted_at"]
    assert live.get("jobs", "ann")["items"][0]["begin_at"] == shown["begin_at"]
    assert live.get(f"jobs/{job}/why", "ann")["begin_at"] == shown["begin_at"]
    plain = live.get(f"jobs/{live.submit('ann', resources={'gpus': 1})}", "ann")
    assert (plain["cpus"], plain["memory"], plain["begin_at"]) == (None, None, None)


def test_waited_is_before_the_first_start_and_took_is_all_attempts(live: api.Live) -> None:
    job = live.submit("ann", hold=True, resources={"gpus": 1})
    live.ask("POST", f"jobs/{job}/release", "ann")
    live.until(job, "running")
    live.ask("POST", f"jobs/{job}/hold", "ann")
    between = live.until(job, "held")
    live.ask("POST", f"jobs/{job}/release", "ann")
    live.until(job, "running")
    live.engine.end(job, 2)
    over = live.until(job, "completed")
    assert over["eligible_at"] == between["eligible_at"] <= over["first_started_at"]
    attempts = live.get(f"jobs/{job}/attempts", "ann")["items"]
    spans = [api_seconds(attempt["started_at"], attempt["ended_at"]) for attempt in attempts]
    assert len(spans) == 2
    assert over["took"] == pytest.approx(sum(spans), abs=0.01)
    assert over["gpu_seconds"] == pytest.approx(over["took"], abs=0.01)
    assert over["waited"] == pytest.approx(
        api_seconds(over["eligible_at"], over["first_started_at"]), abs=0.01
    )
    assert live.get("history", "ann")["items"][0]["took"] == over["took"]


def api_seconds(start: str, end: str) -> float:
    return (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds()
