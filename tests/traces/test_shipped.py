"""The traces in the box are whole."""

from __future__ import annotations

from dovetail.model.units import DAY, MINUTE, SECOND
from dovetail.traces import SHIPPED, describe, load_cluster, load_trace


def test_philly() -> None:
    trace = load_trace("philly")
    told = describe(trace, gpus=2_490)
    assert (told.jobs, told.tenants, told.began) == (82_247, 15, "2017-09-04 10:30:41")
    assert told.sizes[1] == 76_627
    assert told.durations[0.5] == 1_144 * SECOND
    assert round(told.mean_duration / SECOND) == 13_136
    assert 108 * DAY < told.span < 110 * DAY
    assert told.load is not None
    assert 0.1 < told.load < 0.2
    assert trace.notes == ()


def test_itp() -> None:
    traces = [load_trace(name) for name in SHIPPED if name.startswith("itp:")]
    assert len(traces) == 10
    assert sum(len(trace.jobs) for trace in traces) == 69_351
    assert round(sum(describe(trace).gpu_hours for trace in traces), 1) == 1_632_719.7  # as its README says
    assert load_trace("itp:3").jobs == load_trace("itp:cluster03").jobs == traces[2].jobs
    assert load_trace("itp:3").name == "itp:cluster03"


def test_openb_and_its_cluster() -> None:
    trace = load_trace("openb")
    told = describe(trace)
    assert told.jobs == 8_151
    assert trace.notes == ("1 rows dropped: deleted when it started",)
    assert (told.sizes[0], told.shared) == (1_088, 3_077)
    assert 8 * MINUTE < told.durations[0.5] < 9 * MINUTE
    cluster = load_cluster("openb")
    assert (len(cluster.nodes), cluster.gpus) == (1_213, 6_212)
    names = {kind.name for kind in cluster.types}
    assert all(kind in names for job in trace.jobs for kind in job.shape.types)
