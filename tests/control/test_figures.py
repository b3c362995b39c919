"""Figures of jobs and arrays, each with one definition: what the API tells of one live plane agrees."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from tests.control import test_api as api
from tests.control.test_api import Live, eventually, gpus


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with api.living(tmp_path_factory.mktemp("plane"), api.FAST) as made:
        yield made


@pytest.fixture(autouse=True)
def _tidy(live: Live) -> Iterator[None]:
    yield

    def empty() -> bool:
        ids = [job["id"] for job in live.get("jobs?active=true&limit=200")["items"]]
        if ids:
            assert live.ask("POST", "jobs/cancel", "admin", {"ids": ids}).status == 200
        return not ids

    eventually(empty)


def array_of(live: Live, members: int, **more: object) -> str:
    body = {"run": "true", "array": f"0-{members - 1}", **gpus(1), **more}
    return str(live.ask("POST", "jobs", "ann", body).json["id"])


def test_steps_that_were_done_and_steps_that_were_saved_are_two_figures(live: Live) -> None:
    job = live.submit(**gpus(1))
    live.until(job, "running")
    live.engine.said[job, 1] = [
        {"time": 1.0, "step": 40, "loss": 0.5},
        {"time": 2.0, "step": 50, "loss": 0.4},
        {"time": 3.0, "checkpoint": True, "step": 45},
    ]

    def progress() -> dict[str, object]:
        return live.get(f"jobs/{job}")["progress"] or {}

    eventually(lambda: "checkpoint_step" in progress())
    assert progress() == {"time": 3.0, "step": 50, "loss": 0.4, "checkpoint_step": 45}
    live.engine.said[job, 1] += [{"time": 4.0, "step": 51}]
    eventually(lambda: progress()["step"] == 51)
    assert progress() == {"time": 4.0, "step": 51, "loss": 0.4, "checkpoint_step": 45}


def test_the_gpu_time_of_an_array_is_that_of_its_members_while_they_run(live: Live) -> None:
    array = array_of(live, 3)
    eventually(lambda: live.get(f"arrays/{array}")["states"] == {"running": 3})
    assert live.get(f"arrays/{array}")["gpus_held"] == 3
    live.engine.end(f"{array}_0")
    live.until(f"{array}_0", "completed")
    before = live.get(f"arrays/{array}")
    members = [live.get(f"jobs/{array}_{index}") for index in range(3)]
    after = live.get(f"arrays/{array}")
    total = sum(member["gpu_seconds"] for member in members)
    assert 0 < before["gpu_seconds"] <= total <= after["gpu_seconds"] + 0.002
    assert after["gpus_held"] == 2


def test_an_array_has_ended_when_its_last_member_has(live: Live) -> None:
    array, single = array_of(live, 2), live.submit(**gpus(1))
    for job in (f"{array}_0", f"{array}_1", single):
        live.until(job, "running")
    for job in (f"{array}_0", single):
        live.engine.end(job)
        live.until(job, "completed")

    def listed(query: str) -> set[str]:
        items = live.get(f"jobs?fold=true&{query}", "ann")["items"]
        return {item["array"]["id"] if item["array"] else item["id"] for item in items}

    assert array in listed("active=true")
    assert single in listed("active=false")
    assert array not in listed("active=false")
    assert f"{array}_0" in {item["id"] for item in live.get("jobs?active=false", "ann")["items"]}
    live.engine.end(f"{array}_1")
    live.until(f"{array}_1", "completed")
    assert array in listed("active=false")
    assert array not in listed("active=true")


def test_a_history_is_summed_up_over_all_its_pages(live: Live) -> None:
    made = [live.submit(name="counted", **gpus(1)) for _ in range(3)]
    for job in made:
        live.until(job, "running")
        live.engine.end(job)
        live.until(job, "completed")
    other = live.submit("bob", name="counted", **gpus(1))
    live.until(other, "running")
    live.engine.end(other)
    live.until(other, "completed")
    first = live.get("history?name=counted&limit=1", "ann")
    assert first["next"]
    total = live.get("history/total?name=counted", "ann")
    seconds = [live.get(f"jobs/{job}")["gpu_seconds"] for job in made]
    assert total["jobs"] == 3
    assert total["gpu_seconds"] == pytest.approx(sum(seconds), abs=0.003)
    assert live.get("history/total?name=counted", "admin")["jobs"] == 4
    assert live.get("history/total?name=counted&state=failed", "ann") == {
        "jobs": 0,
        "gpu_seconds": 0.0,
        "lost_gpu_seconds": 0.0,
    }


def test_a_job_took_as_long_as_its_attempts(live: Live) -> None:
    job = live.submit(**gpus(1))
    live.until(job, "running")
    time.sleep(0.01)
    live.ask("POST", f"jobs/{job}/requeue", "ann")
    eventually(lambda: live.get(f"jobs/{job}")["attempt"] == 2)
    live.until(job, "running")
    before = live.get(f"jobs/{job}")["took"]
    attempts = live.get(f"jobs/{job}/attempts")["items"]
    after = live.get(f"jobs/{job}")["took"]
    assert [attempt["took"] > 0 for attempt in attempts] == [True, True]
    assert before <= sum(attempt["took"] for attempt in attempts) <= after
    live.engine.end(job, 2)
    ended = live.until(job, "completed")
    attempts = live.get(f"jobs/{job}/attempts")["items"]
    assert ended["took"] == pytest.approx(sum(attempt["took"] for attempt in attempts), abs=1e-5)


def test_a_token_is_told_the_tenants_that_it_sees(live: Live) -> None:
    live.submit("admin", queue="of-a-job-only", hold=True)
    everyone = live.get("me")["tenants"]
    assert {"default", "red", "blue", "of-a-job-only"} <= set(everyone)
    assert everyone == sorted(everyone)
    assert live.get("me", "ann")["tenants"] == ["red"]
    assert live.get("me", "ops")["tenants"] == []
