"""Pictures of every page, light and dark, on a desk and on a phone, from a plane with something to show.

python tests/dashboard/screenshots.py [FOLDER]     (make screenshots; the folder is build/screenshots)
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, sync_playwright

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SIZES = {"desk": {"width": 1280, "height": 800}, "phone": {"width": 390, "height": 844}}
THEMES = ("light", "dark")
README = {"cluster-desk-light": "cluster.png", "lab-queue-desk-dark": "lab.png"}  # what the README shows

TRAIN = """\
import time, dovetail.job as job
for step in range(1, 4000):
    print(f"step {step:4d}  loss {2.3 / step ** 0.3:.4f}", flush=True)
    job.report(step=step, loss=2.3 / step ** 0.3, speed=41 + step % 7 / 3)
    time.sleep(0.25)
"""
TEAMS = {"vision": ("ada", 16), "language": ("bob", 12), "robotics": ("eve", 8)}
WORK = (  # team, name, GPUs on one node, how many, model
    ("language", "pretrain", 8, 1, "Transformer"),
    ("vision", "resnet-sweep", 1, 9, "ResNet-50"),
    ("robotics", "policy-search", 4, 2, "A3C"),
    ("language", "finetune", 2, 5, "Transformer"),
    ("vision", "detector", 4, 3, "Mask-RCNN"),
    ("robotics", "simulate", 1, 6, "A3C"),
    ("language", "evaluate", 8, 2, "Transformer"),
)


def loaded(path: Path) -> Any:
    spec = spec_from_file_location(f"beside_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def furnished(client: Any, folder: Path) -> str:
    """Three teams at work on a plane; the job to look at."""
    harness = loaded(ROOT / "tests" / "control" / "harness.py")
    script = folder / "train.py"
    script.write_text(TRAIN)
    client.connection.put("/prices", {"currency": "USD", "per_gpu_hour": {"A100": 2.2, "V100": 0.9}})
    client.set_tenant("everybody", quota=None)
    for team, (_, quota) in TEAMS.items():
        client.set_tenant(team, parent="everybody", quota=quota)
    shown = first = ""
    for team, name, gpus, count, model in WORK:
        body = {
            "name": name,
            "queue": team,
            "model": model,
            "resources": {"gpus": gpus},
            "expected": f"{20 + 7 * gpus}m",
            "run": f"exec {sys.executable} {script}",
        }
        made = client.submit(body | ({"array": f"0-{count - 1}"} if count > 1 else {}))
        first = first or made.id
        shown = made.id
    for code in (0, 0, 1):
        client.submit({"name": "warm-up", "queue": "vision", "resources": {"gpus": 1}, "run": f"exit {code}"})
    client.drain("n12", "a fan is being replaced")
    harness.eventually(lambda: client.job_info(first).state == "running", "the first job")
    return f"{first}:{shown}"


def routes(ids: str) -> Iterator[tuple[str, str]]:
    running, waiting = ids.split(":")
    yield "cluster", "#/cluster"
    yield "jobs", "#/jobs"
    yield "job", f"#/jobs/{running}"
    yield "waiting", f"#/jobs/{waiting}_1"
    yield "submit", "#/submit"
    yield "history", "#/history"
    yield "lab", "#/lab"
    for tool in ("queue", "compare", "sensitivity", "assignment", "placement", "fairness", "what-if"):
        yield f"lab-{tool}", f"#/lab/{tool}"


def taken(browser: Browser, url: str, token: str, pages: list[tuple[str, str]], folder: Path) -> list[Path]:
    found: list[Path] = []
    for size, viewport in SIZES.items():
        for theme in THEMES:
            context = browser.new_context(viewport=viewport, color_scheme=theme, reduced_motion="reduce")  # type: ignore[arg-type]
            page = context.new_page()
            page.goto(f"{url}/")
            _shoot(page, folder / f"sign-in-{size}-{theme}.png", found)
            page.goto(f"{url}/#token={token}")
            page.get_by_role("heading", level=1, name="Cluster").wait_for()
            for name, route in pages:
                page.goto(f"{url}/{route}")
                page.get_by_role("heading", level=1).wait_for()
                page.wait_for_timeout(1_500)  # charts arrive after the figures
                _shoot(page, folder / f"{name}-{size}-{theme}.png", found)
            context.close()
    return found


def _shoot(page: Any, path: Path, found: list[Path]) -> None:
    page.screenshot(path=path, full_page="phone" in path.name)
    found.append(path)


def main(arguments: list[str]) -> None:
    beside = loaded(HERE / "conftest.py")
    folder = Path(arguments[0]) if arguments else ROOT / "build" / "screenshots"
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
        state = Path(place)
        with beside.harness.commanded(state, "--virtual", "4x8:A100,8x4:V100") as client:
            ids = furnished(client, state)
            token = (state / "state" / "token").read_text().strip()
            browser = playwright.chromium.launch(executable_path=beside.chromium(), args=list(beside.FLAGS))
            found = taken(browser, client.connection.url, token, list(routes(ids)), folder)
            browser.close()
    images = ROOT / "docs" / "images"
    images.mkdir(exist_ok=True)
    for path in found:
        if path.stem in README:
            (images / README[path.stem]).write_bytes(path.read_bytes())
    print(f"{len(found)} pictures in {folder}")


if __name__ == "__main__":
    main(sys.argv[1:])
