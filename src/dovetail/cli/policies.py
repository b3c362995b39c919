"""`dovetail policies`: the published systems, which of them work, and their options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from dovetail.policies.catalogue import System

OBJECTIVES = {
    "ref": "reference",
    "jct": "completion time",
    "util": "utilisation",
    "fair": "fairness",
    "ddl": "deadlines",
    "cost": "cost",
    "makespan": "makespan",
    "lat": "latency",
    "thr": "throughput",
    "acc": "accuracy",
    "mem": "memory",
    "pred": "predictability",
}


def policies(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="One system in detail.", show_default=False)
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(metavar="KIND", help="Only training, serving, tuning or hybrid.", show_default=False),
    ] = None,
    working: Annotated[bool, typer.Option("--working", help="Only systems that can be run.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """List the published systems, or show one system with its options.

    A system works if it can be run, tests confirm claims of its paper, and these tests fail when a part of
    the paper is switched off.

    \b
    dovetail policies --working
    dovetail policies tiresias-l
    """
    from dovetail.policies.catalogue import read_systems

    systems = read_systems()
    if name is not None:
        _show(name, systems, as_json)
        return
    from dovetail.cli.outputs import aligned, note, plainly, print_json, say
    from dovetail.model.errors import UnknownName

    kinds = sorted({system.kind for system in systems.values()})
    if kind is not None and kind not in kinds:
        raise UnknownName("kind of system", kind, kinds)
    listed = [
        system
        for system in systems.values()
        if (kind is None or system.kind == kind) and (system.registered or not working)
    ]
    if as_json:
        print_json({"systems": [_as_json(system) for system in listed]})
        return
    works = sum(1 for system in systems.values() if system.works)
    runs = sum(1 for system in systems.values() if system.registered)
    unproven = f"; {runs - works} more can be run but are not yet proved" if runs > works else ""
    say(f"{works} of {len(systems)} systems work{unproven}")
    say()
    rows = [["name", "year", "for", "objectives", "works", "what it is"]]
    rows += [[s.name, s.year or "-", s.kind, " ".join(s.objectives), s.state, s.title] for s in listed]
    say(aligned(rows, left=range(6)))
    say()
    for system in systems.values():
        if system.broken:
            note(plainly(system.broken))
    used = dict.fromkeys(objective for system in listed for objective in system.objectives)
    say("objectives: " + ", ".join(f"{short} {OBJECTIVES.get(short, short)}" for short in used))
    if any(system.state == "no mutants yet" for system in listed):
        say("no mutants yet: no test has shown yet that its claims fail when a part of it is switched off")
    say("options and claims of one:  dovetail policies NAME")


def _typed(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ",".join(map(_typed, value))
    if isinstance(value, dict):
        return ",".join(f"{key}:{_typed(item)}" for key, item in value.items())
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _as_json(system: System) -> dict[str, Any]:
    return {
        "name": system.name,
        "year": int(system.year) if system.year else None,
        "kind": system.kind,
        "objectives": list(system.objectives),
        "title": system.title,
        "reconstructed": system.reconstructed,
        "runs": system.registered,
        "works": system.works,
        "broken": system.broken or None,
    }


def _show(name: str, systems: dict[str, System], as_json: bool) -> None:
    import difflib
    import inspect

    from dovetail.cli.outputs import aligned, plainly, print_json, say
    from dovetail.model.errors import InputError, UnknownName
    from dovetail.policies.catalogue import options_of
    from dovetail.policies.registry import POLICIES

    if name not in systems:
        if not difflib.get_close_matches(name, systems, n=1):  # the full list would fill the screen
            raise InputError(f"no policy is named {plainly(name)!r}; list them with dovetail policies")
        raise UnknownName("policy", name, systems)
    system = systems[name]
    if system.broken:
        raise InputError(plainly(system.broken))
    options = options_of(name) if system.registered else []
    doc = inspect.getdoc(POLICIES.factory(name)) or "" if system.registered else ""
    page = f"docs/systems/{name}.md"
    if as_json:
        claims = [{"sentence": sentence, "test": test} for sentence, test in system.claims]
        mutants = [{"part": part, "change": change, "test": test} for part, change, test in system.mutants]
        shown = {"options": options, "doc": doc, "claims": claims, "mutants": mutants, "page": page}
        print_json({**_as_json(system), **shown})
        return
    facts = [system.kind, system.year, *(OBJECTIVES.get(o, o) for o in system.objectives)]
    say(f"{name}: {system.title} ({', '.join(fact for fact in facts if fact)}); works: {system.state}")
    if system.reconstructed:
        say("the paper does not publish the whole rule: the missing parts are our choice")
    if doc:
        say(f"\n{doc}")
    if options:
        rows = [["option", "default", "values"]]
        rows += [[option["name"], _typed(option["default"]), option["type"]] for option in options]
        say("\n" + aligned(rows, left=(0, 1, 2)))
    for sentence, test in system.claims:
        say(f"\nclaim: {sentence}\n  shown by {test}")
    if system.mutants:
        say("\nmutants: a claim fails if one of these parts is switched off:")
        rows = [["part", "what is done instead"]]
        say(aligned(rows + [[part, change] for part, change, _ in system.mutants], left=(0, 1)))
    say()
    if system.registered:
        say(f"try it:  dovetail simulate philly --cluster 52x8 --policy {name} --head 5000")
    say(f"its page:  {page}")
