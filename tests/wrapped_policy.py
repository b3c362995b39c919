"""A policy around another: the same order, groups and rounds. Tests override `decide`."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

from dovetail.model.view import JobView, Order, Plan, Policy, View


@dataclass
class Wrapped:
    """Decides as the inner policy does."""

    inner: Policy

    @property
    def order(self) -> Order:
        return self.inner.order

    @property
    def group(self) -> Callable[[JobView], Hashable] | None:
        return self.inner.group

    @property
    def quantum(self) -> int | None:
        return self.inner.quantum

    def decide(self, view: View) -> Plan:
        return self.inner.decide(view)
