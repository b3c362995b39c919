"""Journals of fixed runs are, byte for byte, as they were when their digests were written."""

from __future__ import annotations

import pytest
from tests.golden.journals import WORLDS, digest, kept

from dovetail.policies.registry import POLICIES


@pytest.mark.parametrize("policy", POLICIES.names())
def test_every_policy_decides_as_it_did(policy: str) -> None:
    before = {world: (sha, steps) for name, world, sha, steps in kept() if name == policy}
    assert {world: digest(policy, make()) for world, make in WORLDS.items()} == before
