"""Names to factories, and options as a user types them."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, Optional

import pytest

from dovetail.core.memory import from_plain, to_plain
from dovetail.model import registry
from dovetail.model.errors import BadOption, CannotLoad, InputError, UnknownName
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
    monkeypatch.setattr(registry, "distributions", lambda: pytest.fail("asked"))
    assert TABLE.make("fraction", numerator=3) == 3


def installed(folder: Path, points: str, name: str = "mine") -> None:
    about = folder / f"{name}-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Name: {name}\nVersion: 1\n")
    (about / "entry_points.txt").write_text(f"[dovetail.tests.none]\n{points}\n")


@pytest.mark.parametrize(
    "value", ["no_such_module:thing", "decimal:Nothing", "!!", "decimal", "builtins:dict"]
)
def test_a_plug_in_that_cannot_be_loaded_is_a_problem_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    installed(tmp_path, f"broken = {value}\ndecimal = decimal:Decimal")
    monkeypatch.syspath_prepend(tmp_path)
    assert TABLE.names() == ["broken", "count", "decimal", "fraction", "gone"]
    with pytest.raises(CannotLoad, match="counter broken") as error:
        TABLE.make("broken")
    assert TABLE.problem("broken") == str(error.value)
    assert "\n" not in str(error.value)
    assert (TABLE.problem("decimal"), TABLE.make("decimal", value="2")) == ("", 2)


def test_a_package_with_damaged_metadata_adds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(tmp_path, "decimal = decimal:Decimal")
    installed(tmp_path, "no equals sign", "damaged")
    monkeypatch.syspath_prepend(tmp_path)
    assert TABLE.names() == ["count", "decimal", "fraction", "gone"]


# --- files --------------------------------------------------------------------------------------------

FILES = replace(TABLE, files=True)
CODE = """
from dataclasses import dataclass

@dataclass(frozen=True)
class Kept:
    number: int

def thing(*, number: int = 1):
    return Kept(number)
"""


def test_a_function_in_a_file_is_made_only_where_files_are_trusted(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(CODE + "open(__file__ + '.mark', 'w').close()\n")
    name = f"{tmp_path / 'mine.py'}:thing"
    with pytest.raises(CannotLoad, match="only administrators and the command line may name a counter so"):
        TABLE.make(name)
    assert not (tmp_path / "mine.py.mark").exists()
    assert FILES.make(name, number=3).number == 3
    assert list(FILES.options(name)) == ["number"]
    with pytest.raises(BadOption, match="has no option 'numbre'; did you mean number"):
        FILES.make(name, numbre=3)


def test_a_file_is_run_again_when_it_has_changed_and_only_then(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(CODE)
    name = f"{file}:thing"
    first = FILES.factory(name)
    assert FILES.factory(name) is first
    file.write_text(CODE.replace("Kept(number)", "Kept(-number)"))
    assert FILES.make(name, number=3).number == -3
    file.write_text("def thing(:\n")
    with pytest.raises(CannotLoad, match="cannot be loaded: SyntaxError"):
        FILES.make(name)


def test_what_a_policy_of_a_file_keeps_can_be_stored(tmp_path: Path) -> None:
    """Its classes are found by the name of the module, which is the same in every process."""
    (tmp_path / "mine.py").write_text(CODE)
    kept = FILES.make(f"{tmp_path / 'mine.py'}:thing", number=7)
    plain = to_plain(kept)
    assert from_plain(plain) == kept
    code = (
        "from dovetail.core.memory import from_plain\n"
        "from dovetail.policies.registry import TRUSTED_POLICIES\n"
        f"TRUSTED_POLICIES.factory({str(tmp_path / 'mine.py') + ':thing'!r})\n"
        f"assert from_plain({plain!r}).number == 7\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


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
