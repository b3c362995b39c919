"""Names to factories, and options as a user types them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, Optional

import pytest

from dovetail.model import registry
from dovetail.model.errors import BadOption, InputError, UnknownName
from dovetail.model.registry import Registry, read_option

TABLE: Registry[Any] = Registry(
    "counter",
    {"fraction": "fractions:Fraction", "count": "collections:Counter", "gone": "no_such_module:thing"},
    plugins="dovetail.tests.none",
)


def test_names_are_made_on_first_use() -> None:
    assert TABLE.names() == ["count", "fraction", "gone"]
    assert TABLE.make("fraction", numerator=3) == 3
    with pytest.raises(ModuleNotFoundError):
        TABLE.factory("gone")


def test_a_plug_in_adds_names_and_takes_none_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine-1.dist-info").mkdir()
    (tmp_path / "mine-1.dist-info" / "METADATA").write_text("Name: mine\nVersion: 1\n")
    points = "[dovetail.tests.none]\ndecimal = decimal:Decimal\nfraction = decimal:Decimal\n"
    (tmp_path / "mine-1.dist-info" / "entry_points.txt").write_text(points)
    monkeypatch.syspath_prepend(tmp_path)
    assert TABLE.names() == ["count", "decimal", "fraction", "gone"]
    assert TABLE.make("decimal", value="1.50") == Decimal("1.50")
    assert TABLE.factory("fraction") is Fraction


def test_our_own_names_are_found_without_a_look_at_what_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "entry_points", lambda **_: pytest.fail("asked"))
    assert TABLE.make("fraction", numerator=3) == 3


def test_an_unknown_name_brings_a_hint() -> None:
    with pytest.raises(UnknownName, match=r"no counter is named 'fractoin'; did you mean fraction\?"):
        TABLE.make("fractoin")
    with pytest.raises(UnknownName, match="known: count, fraction, gone"):
        TABLE.make("zzz")


def test_an_unknown_option_is_refused_never_dropped() -> None:
    with pytest.raises(
        BadOption, match=r"counter fraction has no option 'numerater'; did you mean numerator\?"
    ):
        TABLE.make("fraction", numerater=3)
    with pytest.raises(BadOption, match="it takes"):
        TABLE.make("fraction", zzz=3)
    assert issubclass(BadOption, InputError)


@pytest.mark.parametrize(
    ("annotation", "text", "value"),
    [
        (int, "7", 7),
        (float, "1e3", 1_000.0),
        (str, "7", "7"),
        (bool, "yes", True),
        (bool, "off", False),
        (Literal["strict", "skip"], "skip", "skip"),
        (Literal[1, 2], "2", 2),
        (float | None, "none", None),
        (float | None, "", None),
        (float | None, "2", 2.0),
        (Optional[int], "3", 3),  # noqa: UP045 (older plug-ins write it so)
        (Sequence[float], "1,2.5", (1.0, 2.5)),
        (tuple[int, ...], "1,2", (1, 2)),
        (Sequence[str], "", ()),
        (Mapping[str, float], "a:1,b:2.5", {"a": 1.0, "b": 2.5}),
        (Mapping[str, int] | None, "a:1", {"a": 1}),
    ],
)
def test_options_are_read_as_their_type(annotation: object, text: str, value: object) -> None:
    assert read_option("policy", "p", _parameter(annotation), text) == value


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        (int, "1.5"),
        (float, "fast"),
        (bool, "maybe"),
        (Literal["strict", "skip"], "lax"),
        (Sequence[float], "1,x"),
        (Mapping[str, float], "a"),
        (object, "anything"),
    ],
)
def test_a_value_that_an_option_cannot_take(annotation: object, text: str) -> None:
    with pytest.raises(BadOption, match=f"policy p: speed='{text}' is wrong"):
        read_option("policy", "p", _parameter(annotation), text)


def test_choices_are_named() -> None:
    with pytest.raises(BadOption, match=r"choose strict \| skip"):
        read_option("policy", "p", _parameter(Literal["strict", "skip"]), "lax")


def _parameter(annotation: object) -> inspect.Parameter:
    return inspect.Parameter("speed", inspect.Parameter.KEYWORD_ONLY, annotation=annotation)
