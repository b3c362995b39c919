"""What lies in dashboard/vendor is what its authors publish, to the byte."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

VENDOR = Path(__file__).parents[2] / "src" / "dovetail" / "dashboard" / "vendor"
MODULES = Path(__file__).parent / "node_modules"
FILES = {
    "preact.mjs": "preact/dist/preact.mjs",
    "hooks.mjs": "preact/hooks/dist/hooks.mjs",
    "htm.mjs": "htm/dist/htm.mjs",
    "uPlot.esm.js": "uplot/dist/uPlot.esm.js",
    "uPlot.min.css": "uplot/dist/uPlot.min.css",
}


def test_nothing_else_lies_there() -> None:
    assert {path.name for path in VENDOR.iterdir()} == {*FILES, "LICENSES"}


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_as_it_was_published_and_its_licence_is_named(name: str) -> None:
    if not MODULES.exists() and os.environ.get("CI") != "true":
        pytest.skip("npm's packages are not here: make browser brings them")
    published = MODULES / FILES[name]
    assert (VENDOR / name).read_bytes() == published.read_bytes()
    package = published.relative_to(MODULES).parts[0]
    facts = json.loads((MODULES / package / "package.json").read_text())
    licence = (VENDOR / "LICENSES").read_text()
    assert f"{package.lower()} {facts['version']}" in licence.lower()
    assert (MODULES / package / "LICENSE").read_text().strip() in licence
