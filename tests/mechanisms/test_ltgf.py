"""What is deserved, and who is owed most."""

from __future__ import annotations

from dovetail.mechanisms.ltgf import Account, Ledger, Wish, accrued, dealt, held, in_turn

KINDS = ("gpu",)


def wishes(**loads: list[int]) -> dict[str, list[Wish]]:
    return {
        tenant: [Wish(f"{tenant}{i}", load, KINDS) for i, load in enumerate(mine)]
        for tenant, mine in loads.items()
    }


def test_shares_go_by_weight_and_end_at_what_is_asked_for() -> None:
    ledger = dealt(Ledger(), wishes(a=[8000] * 4, b=[1000] * 2, c=[8000]), 16_000, {"a": 2.0}, {"c": 3000.0})
    shares = {name: account.share for name, account in ledger.tenants.items()}
    assert shares == {"a": 11_000.0, "b": 2000.0, "c": 3000.0}  # c may hold no more
    assert {ledger.jobs[f"a{i}"].share for i in range(4)} == {2750.0}
    assert ledger.jobs["b0"].share == 1000.0


def test_a_jobs_part_ends_at_what_it_asks_for() -> None:
    ledger = dealt(Ledger(), wishes(a=[1000, 4000, 4000]), 7000, {}, {})
    assert [ledger.jobs[f"a{i}"].share for i in range(3)] == [1000.0, 3000.0, 3000.0]


def test_accounts_grow_with_time_and_jobs_that_are_gone_are_struck_out() -> None:
    ledger = held(
        dealt(Ledger(), wishes(a=[2000], b=[2000]), 2000, {}, {}), {"a0": ("a", 2000), "b0": ("b", 0)}
    )
    ledger = accrued(ledger, 100)
    assert ledger.tenants["a"] == Account(200_000.0, 100_000.0, 2000.0, 1000.0)
    assert ledger.tenants["b"].ltgf() == 0.0
    ledger = dealt(ledger, wishes(a=[2000]), 2000, {}, {})
    assert set(ledger.jobs) == {"a0"}
    assert accrued(held(ledger, {"a0": ("a", 0)}), 200).tenants["b"].due == 100_000.0  # it wants nothing now


def test_the_tenant_furthest_behind_goes_first_and_is_charged_at_once() -> None:
    ledger = dealt(Ledger(), wishes(a=[1000] * 4, b=[1000] * 4), 4000, {}, {})
    order = in_turn(ledger, wishes(a=[1000] * 4, b=[1000] * 4), {"gpu": 4000}, 600)
    assert sorted(order[:4]) == ["a0", "a1", "b0", "b1"]
    assert len(order) == 8


def test_a_gang_that_finds_no_room_stands_behind_those_who_do() -> None:
    ledger = dealt(Ledger(), wishes(a=[4000], b=[1000, 1000]), 4000, {}, {})
    ledger = Ledger(
        0, {**ledger.tenants, "a": Account(9e9, 1e9, 0.0, 2000.0)}, ledger.jobs
    )  # it has had much
    assert in_turn(ledger, wishes(a=[4000], b=[1000, 1000]), {"gpu": 4000}, 600) == ["b0", "b1", "a0"]


def test_types_are_counted_apart() -> None:
    wish = {
        "a": [Wish("v", 1000, ("V100",)), Wish("k", 1000, ("K80", "V100"))],
        "b": [Wish("w", 1000, ("V100",))],
    }
    ledger = dealt(Ledger(), wish, 2000, {}, {})
    assert in_turn(ledger, wish, {"V100": 1000, "K80": 1000}, 600)[:2] == ["v", "k"]
