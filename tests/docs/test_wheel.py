"""What is installed from a wheel works outside the checkout, shipped data included."""

from __future__ import annotations

import compileall
import json
import os
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel's contents and nothing of the checkout; dependencies are those we have."""
    made, folder = tmp_path_factory.mktemp("wheel"), tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
    built = subprocess.run(
        [*pip, "--no-build-isolation", "--wheel-dir", made, ROOT], capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr
    (wheel,) = made.glob("dovetail-*.whl")
    with zipfile.ZipFile(wheel) as opened:
        opened.extractall(folder)
    return folder


def typed(installed: Path, folder: Path, *words: str) -> str:
    start = "import dovetail, sys; sys.argv[0] = 'dovetail'; from dovetail.cli.main import main; main()"
    result = subprocess.run(
        [sys.executable, "-c", start, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def closure(name: str) -> dict[str, metadata.Distribution]:
    """The distribution and all that it requires at run time, by name."""
    found: dict[str, metadata.Distribution] = {}
    wanted = [Requirement(name)]
    while wanted:
        requirement = wanted.pop()
        if (key := canonicalize_name(requirement.name)) in found:
            continue
        found[key] = metadata.distribution(key)
        for line in found[key].requires or ():
            more = Requirement(line)
            extras = ("", *requirement.extras)
            if more.marker is None or any(more.marker.evaluate({"extra": extra}) for extra in extras):
                wanted.append(more)
    return found


def size_of(found: metadata.Distribution) -> int:
    files = [Path(str(found.locate_file(file))) for file in found.files or ()]
    assert any(file.suffix == ".pyc" for file in files), f"{found.name} was installed without its bytecode"
    return sum(file.stat().st_size for file in files if file.is_file())


def sizes_of_dependencies() -> dict[str, int]:
    """What `pip install .` brings besides Dovetail, in bytes, bytecode included."""
    return {name: size_of(one) for name, one in closure("dovetail").items() if name != "dovetail"}


def size_in(installed: Path) -> int:
    """Dovetail itself, bytecode included. What we run the tests with is a link to the checkout."""
    compileall.compile_dir(installed, quiet=1)
    return sum(file.stat().st_size for file in installed.rglob("*") if file.is_file())


def test_the_dependencies_take_at_most_150_megabytes() -> None:
    sizes = sizes_of_dependencies()
    assert len(sizes) > 15
    largest = sorted(sizes.items(), key=lambda item: -item[1])[:8]
    total = sum(sizes.values())
    assert total <= 150e6, f"{total / 1e6:.1f} MB, most of it {largest}"


def test_the_wheel_takes_at_most_12_megabytes(installed: Path) -> None:
    total = size_in(installed)
    assert total <= 12e6, f"{total / 1e6:.1f} MB"


def test_dovetail_and_all_it_requires_take_at_most_150_mebibytes(installed: Path) -> None:
    sizes = sizes_of_dependencies() | {"dovetail": size_in(installed)}
    largest = sorted(sizes.items(), key=lambda item: -item[1])[:8]
    total = sum(sizes.values())
    assert total <= 150 * 2**20, f"{total / 2**20:.1f} MiB, most of it {largest}"


def test_it_is_the_wheel_that_runs(installed: Path, tmp_path: Path) -> None:
    where = subprocess.run(
        [sys.executable, "-c", "import dovetail; print(dovetail.__file__)"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(where.stdout.strip()).is_relative_to(installed)


def test_the_catalogue_and_the_claims_are_in_it(installed: Path, tmp_path: Path) -> None:
    systems = json.loads(typed(installed, tmp_path, "policies", "--json"))["systems"]
    assert sum(system["runs"] for system in systems) >= 28
    assert sum(system["works"] for system in systems) >= 11
    assert list(installed.glob("dovetail-*.dist-info/licenses/NOTICE"))


def test_the_page_is_in_it(installed: Path) -> None:
    source = ROOT / "src" / "dovetail" / "dashboard"
    files = {str(path.relative_to(source)) for path in source.rglob("*") if path.is_file()}
    packed = installed / "dovetail" / "dashboard"
    assert {str(path.relative_to(packed)) for path in packed.rglob("*") if path.is_file()} >= files
    assert "index.html" in files


@pytest.mark.parametrize("trace", ["philly", "itp:1", "openb"])
def test_the_shipped_traces_are_in_it(installed: Path, tmp_path: Path, trace: str) -> None:
    said = typed(installed, tmp_path, "trace", "info", trace, "--json")
    assert json.loads(said)["jobs"] > 1000


def test_a_run_and_its_report(installed: Path, tmp_path: Path) -> None:
    words = ["philly", "--cluster", "52x8", "--policy", "sjf", "--head", "2000", "--report", "run.html"]
    assert json.loads(typed(installed, tmp_path, "simulate", *words, "--json"))["finished"] == 2000
    assert (tmp_path / "run.html").stat().st_size > 10_000
