"""What a job writes into its reports, and what becomes of it: no value from a job stops the plane."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.control.harness import commanded, eventually

from dovetail import Client
from dovetail.control.commands import cancel
from dovetail.control.records import Record
from dovetail.control.report_values import MOST_VALUES, checked_report
from dovetail.control.request import parse_request
from dovetail.control.serve import Wanted, plane_up
from dovetail.control.store import Batch
from dovetail.control.submission import submit
from dovetail.control.tokens import Caller

# Each is one line of reports.jsonl. json.dumps writes NaN, Infinity, lone surrogates and any integer.
LINES: dict[str, str] = {
    "not a number": '{"steps_per_second": NaN, "step": NaN}',
    "infinite": '{"steps_per_second": Infinity, "step": -Infinity}',
    "a long integer": '{"steps_per_second": ' + "9" * 400 + ', "step": -' + "9" * 400 + "}",
    "a tiny rate": '{"steps_per_second": 5e-324}',
    "a huge rate": '{"steps_per_second": 1.7e308}',
    "a rate that is true": '{"steps_per_second": true}',
    "a NUL": json.dumps({"note": "a\0b", "a\0b": 1}),
    "a lone surrogate": json.dumps({"note": "\ud800", "\udfff": 1}),
    "control characters": json.dumps({"note": "\x1b[2J\u202e", "step": 1}),
    "deep": '{"note": ' + "[" * 900 + "]" * 900 + "}",
    "too deep": '{"note": ' + "[" * 200_000 + "]" * 200_000 + "}",
    "long names": json.dumps({"n" * 100_000: 1, "note": "x" * 100_000}),
    "many names": json.dumps({f"n{i}": i for i in range(10_000)}),
    "no object": '["steps_per_second", 1]',
    "not JSON": "\x00\xff{",
}


@pytest.mark.parametrize("name", LINES)
def test_a_report_becomes_a_few_plain_values(name: str) -> None:
    try:
        raw = json.loads(LINES[name])
    except (ValueError, RecursionError):
        return
    kept = checked_report(raw) if isinstance(raw, dict) else {}
    assert len(kept) <= MOST_VALUES
    for key, value in kept.items():
        assert key.isprintable()
        assert isinstance(value, bool | int | float | str)
        assert not isinstance(value, float) or math.isfinite(value)
        assert isinstance(value, str) or abs(value) <= 1 << 53 or isinstance(value, float)
        assert not isinstance(value, str) or value.isprintable()
    assert checked_report(kept) == kept
    json.dumps(kept, allow_nan=False).encode()


def test_good_values_stay_as_they_are() -> None:
    said = {"step": 7, "loss": 0.25, "done": False, "phase": "warm-up, épochè 3", "steps_per_second": 12.5}
    assert checked_report(said) == said


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    with commanded(tmp_path, "--virtual", "1x8:A100") as found:
        yield found


@pytest.mark.slow(12)
def test_no_line_of_a_job_stops_the_plane(client: Client, tmp_path: Path) -> None:
    jobs = {}
    for number, (name, line) in enumerate(LINES.items()):
        file = tmp_path / f"line{number}"
        file.write_text(line + "\n", encoding="utf-8", errors="surrogatepass")
        body = {"model": "m", "resources": {"gpus": 1}, "time": "1h"}
        jobs[name] = client.submit(
            {**body, "run": f"cat {file} >> $DOVETAIL_RUN_DIR/reports.jsonl; sleep 4"}
        ).id
    ended = {name: eventually(lambda id=id: _end_of(client, id), name) for name, id in jobs.items()}  # type: ignore[misc]
    assert set(ended.values()) == {"completed"}
    health = client.health()
    assert (health["status"], health["role"]) == ("ok", "leader")
    assert "ERROR" not in (tmp_path / "state" / "plane.log").read_text()
    for id in jobs.values():
        client.connection.get(f"/jobs/{id}/reports")
    after = client.submit({"run": "true", "resources": {"gpus": 1}}).id
    eventually(lambda: _end_of(client, after) == "completed")


def _end_of(client: Client, id: str) -> str:
    state = client.job_info(id).state
    return state if state in ("completed", "failed", "cancelled") else ""


@pytest.mark.parametrize("name", ["sqlite", "postgresql"])
@pytest.mark.slow(8)
def test_a_report_is_recorded_on_every_database(
    tmp_path: Path, name: str, request: pytest.FixtureRequest
) -> None:
    make: Callable[[], str] | None = request.getfixturevalue("database") if name == "postgresql" else None
    wanted = Wanted(folder=tmp_path / "s", virtual="1x8:A100", port=1, database=make and make())
    ann = Caller("t", "red", "ann", "user")
    with plane_up(wanted) as up:
        store = up.plane.store

        def taken(line: str, body: dict[str, Any]) -> Record:
            """A running job has reported the line, and that is on record."""
            id = submit(up.plane, ann, parse_request(body), body).id
            eventually(lambda: up.plane.ask(lambda state, now: state.ledger.index.records[id].started_at))

            def report(state: Any, now: int) -> Record:
                record: Record = state.ledger.index.records[id]
                state.reports._take(record, [json.loads(line)], state.ledger, now)
                return record

            return up.plane.change(report)

        hostile = [line for key, line in LINES.items() if key not in ("no object", "not JSON", "too deep")]
        for line in hostile:
            body = {"run": "sleep 60", "model": "m", "resources": {"gpus": 1}}
            record = taken(line, body)
            store.commit(Batch(changed={record.id: record}))
            cancel(up.plane, [record.id])
        assert up.plane.failed is None
        assert up.plane.trouble == ""
        assert all(0 < row["rate"] < 1e13 for row in store.speeds())


def test_a_tenant_cannot_change_the_measured_speeds_of_another(tmp_path: Path) -> None:
    with plane_up(Wanted(folder=tmp_path / "s", virtual="1x8:A100", port=1)) as up:

        def reported(tenant: str, rate: float) -> None:
            body = {"run": "sleep 60", "model": "bert", "resources": {"gpus": 1}}
            caller = Caller(f"t-{tenant}", tenant, tenant, "user")
            id = submit(up.plane, caller, parse_request(body), body).id
            eventually(lambda: up.plane.ask(lambda state, now: state.ledger.index.records[id].started_at))

            def report(state: Any, now: int) -> None:
                record = state.ledger.index.records[id]
                state.reports._take(record, [{"steps_per_second": rate}], state.ledger, now)

            up.plane.change(report)

        reported("blue", 10.0)
        reported("red", 1e9)
        rates = {(row["tenant"], row["model"]): row["rate"] for row in up.plane.store.speeds()}
        assert rates == {("blue", "bert"): 10.0, ("red", "bert"): 1e9}
        models = up.plane.ask(lambda state, now: {job.model for job in state.ledger.core.jobs.values()})
        assert models == {"blue/bert", "red/bert"}, "policies measure by model"
        cancel(up.plane, up.plane.ask(lambda state, now: list(state.ledger.index.records)))


def test_a_loss_reaches_the_core_once_in_an_epoch(tmp_path: Path) -> None:
    with plane_up(Wanted(folder=tmp_path / "s", virtual="1x8:A100", port=1)) as up:
        body = {"run": "sleep 60", "resources": {"gpus": 1}}
        id = submit(up.plane, Caller("t", "red", "ann", "user"), parse_request(body), body).id
        eventually(lambda: up.plane.ask(lambda state, now: state.ledger.index.records[id].started_at))

        def reported(line: str) -> Any:
            def report(state: Any, now: int) -> None:
                state.reports._take(state.ledger.index.records[id], [json.loads(line)], state.ledger, now)

            up.plane.change(report)
            return up.plane.ask(lambda state, now: state.ledger.core.jobs[id].loss)

        for wrong in ('{"loss": NaN, "epoch": 1}', '{"loss": 0.5, "epoch": 1e300}', '{"loss": 0.5}'):
            assert reported(wrong) is None
        first = reported('{"loss": 0.5, "epoch": 1}')
        assert (first.loss, first.epoch) == (0.5, 1)
        assert reported('{"loss": 0.4, "epoch": 1.9}') == first
        assert reported('{"loss": 0.25, "epoch": 2}').loss == 0.25
        cancel(up.plane, [id])
