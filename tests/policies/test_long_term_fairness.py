"""What tenants and jobs deserve, and which have received least of it."""

from __future__ import annotations

from dovetail.policies.astraea.long_term_fairness import (
    Account,
    Accounts,
    Request,
    accrued,
    lease_order,
    with_holdings,
    with_shares,
)

KINDS = ("gpu",)


def requests(**loads: list[int]) -> dict[str, list[Request]]:
    return {
        tenant: [Request(f"{tenant}{i}", load, KINDS) for i, load in enumerate(mine)]
        for tenant, mine in loads.items()
    }


def test_shares_go_by_weight_up_to_what_is_asked_for() -> None:
    accounts = with_shares(
        Accounts(), requests(a=[8000] * 4, b=[1000] * 2, c=[8000]), 16_000, {"a": 2.0}, {"c": 3000.0}
    )
    shares = {name: account.share for name, account in accounts.tenants.items()}
    assert shares == {"a": 11_000.0, "b": 2000.0, "c": 3000.0}  # c may hold no more
    assert {accounts.jobs[f"a{i}"].share for i in range(4)} == {2750.0}
    assert accounts.jobs["b0"].share == 1000.0


def test_a_job_deserves_no_more_than_it_asks_for() -> None:
    accounts = with_shares(Accounts(), requests(a=[1000, 4000, 4000]), 7000, {}, {})
    assert [accounts.jobs[f"a{i}"].share for i in range(3)] == [1000.0, 3000.0, 3000.0]


def test_accounts_grow_with_time_and_ended_jobs_are_dropped() -> None:
    accounts = with_holdings(
        with_shares(Accounts(), requests(a=[2000], b=[2000]), 2000, {}, {}),
        {"a0": ("a", 2000), "b0": ("b", 0)},
    )
    accounts = accrued(accounts, 100)
    assert accounts.tenants["a"] == Account(200_000.0, 100_000.0, 2000.0, 1000.0)
    assert accounts.tenants["b"].fairness() == 0.0
    accounts = with_shares(accounts, requests(a=[2000]), 2000, {}, {})
    assert set(accounts.jobs) == {"a0"}
    assert (
        accrued(with_holdings(accounts, {"a0": ("a", 0)}), 200).tenants["b"].due == 100_000.0
    )  # it wants nothing now


def test_the_tenant_furthest_behind_goes_first_and_is_charged_at_once() -> None:
    accounts = with_shares(Accounts(), requests(a=[1000] * 4, b=[1000] * 4), 4000, {}, {})
    order = lease_order(accounts, requests(a=[1000] * 4, b=[1000] * 4), {"gpu": 4000}, 600)
    assert sorted(order[:4]) == ["a0", "a1", "b0", "b1"]
    assert len(order) == 8


def test_a_job_without_room_comes_after_jobs_with_room() -> None:
    accounts = with_shares(Accounts(), requests(a=[4000], b=[1000, 1000]), 4000, {}, {})
    accounts = Accounts(
        0, {**accounts.tenants, "a": Account(9e9, 1e9, 0.0, 2000.0)}, accounts.jobs
    )  # it received much
    assert lease_order(accounts, requests(a=[4000], b=[1000, 1000]), {"gpu": 4000}, 600) == ["b0", "b1", "a0"]


def test_types_are_counted_apart() -> None:
    wanted = {
        "a": [Request("v", 1000, ("V100",)), Request("k", 1000, ("K80", "V100"))],
        "b": [Request("w", 1000, ("V100",))],
    }
    accounts = with_shares(Accounts(), wanted, 2000, {}, {})
    assert lease_order(accounts, wanted, {"V100": 1000, "K80": 1000}, 600)[:2] == ["v", "k"]
