"""Pictures of every page, light and dark, on a desk and on a phone, from a plane with something to show.

python -m tests.dashboard.screenshots [FOLDER]     (make screenshots; the folder is build/screenshots)
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, sync_playwright
from tests.control import harness
from tests.dashboard.conftest import FLAGS, chromium

ROOT = Path(__file__).parents[2]
SIZES = {"desk": {"width": 1280, "height": 800}, "phone": {"width": 390, "height": 844}}
THEMES = ("light", "dark")
README = {"cluster-desk-light": "cluster.png", "lab-queue-desk-dark": "lab.png"}  # what the README shows

PLANE = ("--virtual", "4x8:A100,8x4:V100", "--time-scale", "120")
SCALE = 120  # plane seconds in a real one: an hour of history takes half a minute

TRAIN = """\
import time
from dovetail import job
for step in range(1, 4000):
    print(f"step {step:4d}  loss {2.3 / step ** 0.3:.4f}", flush=True)
    job.report(step=step, loss=2.3 / step ** 0.3)
    time.sleep(0.25)
"""
TEAMS = {"vision": ("ada", 24), "language": ("bob", 24), "robotics": ("eve", 16)}
PAST = (  # real seconds until the next, team, name, GPUs on one node, how many, for how many real seconds
    (2.0, "vision", "resnet", 1, 12, 5.0),
    (3.0, "language", "tokenise", 2, 5, 4.0),
    (2.0, "robotics", "rollouts", 4, 3, 6.0),
    (4.0, "language", "distil", 8, 2, 7.0),
    (3.0, "vision", "augment", 1, 10, 5.0),
    (3.0, "robotics", "imitation", 2, 6, 6.0),
    (3.0, "language", "score", 4, 4, 5.0),
)
NOW = (  # team, name, GPUs on one node, how many, model
    ("language", "pretrain", 8, 2, "Transformer"),
    ("vision", "resnet-sweep", 1, 11, "ResNet-50"),
    ("robotics", "policy-search", 4, 3, "A3C"),
    ("language", "finetune", 2, 5, "Transformer"),
    ("vision", "detector", 4, 3, "Mask-RCNN"),
    ("robotics", "simulate", 1, 6, "A3C"),
    ("language", "evaluate", 8, 2, "Transformer"),
)


def furnished(client: Any, folder: Path) -> tuple[str, str]:
    """Three teams at work on a plane; a job that runs, and one that waits."""
    script = folder / "train.py"
    script.write_text(TRAIN)
    client.connection.put("/prices", {"currency": "USD", "per_gpu_hour": {"A100": 2.2, "V100": 0.9}})
    client.set_tenant("everybody", quota=None)
    for team, (_, quota) in TEAMS.items():
        client.set_tenant(team, parent="everybody", quota=quota)
    client.drain("n11", "a fan is being replaced")
    for pause, team, name, gpus, count, lasts in PAST:
        submit(client, team, name, gpus, count, f"sleep {lasts}", lasts * SCALE)
        time.sleep(pause)
    made = [
        submit(
            client, team, name, gpus, count, f"exec {sys.executable} {script}", 3_600 * (1 + gpus / 4), model
        )
        for team, name, gpus, count, model in NOW
    ]
    running, waiting = f"{made[0]}_0", f"{made[-1]}_1"
    harness.eventually(lambda: client.job_info(running).state == "running", "the first job")
    return running, waiting


def submit(
    client: Any, team: str, name: str, gpus: int, count: int, run: str, expected: float, model: str = ""
) -> str:
    body = {"name": name, "queue": team, "resources": {"gpus": gpus}, "expected": f"{expected}s", "run": run}
    return str(client.submit(body | {"array": f"0-{count - 1}", "model": model or name}).id)


def routes(running: str, waiting: str) -> Iterator[tuple[str, str]]:
    yield "cluster", "#/cluster"
    yield "jobs", "#/jobs"
    yield "job", f"#/jobs/{running}"
    yield "waiting", f"#/jobs/{waiting}"
    yield "submit", "#/submit"
    yield "history", "#/history"
    yield "lab", "#/lab"
    for tool in ("queue", "compare", "sensitivity", "assignment", "placement", "fairness", "whatif"):
        yield f"lab-{tool}", f"#/lab/{tool}"


def taken(browser: Browser, url: str, token: str, pages: list[tuple[str, str]], folder: Path) -> list[Path]:
    found: list[Path] = []
    for size, viewport in SIZES.items():
        for theme in THEMES:
            context = browser.new_context(viewport=viewport, color_scheme=theme, reduced_motion="reduce")  # type: ignore[arg-type, unused-ignore]
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
    folder = Path(arguments[0]) if arguments else ROOT / "build" / "screenshots"
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
        state = Path(place)
        with harness.commanded(state, *PLANE) as client:
            jobs = furnished(client, state)
            token = (state / "state" / "token").read_text().strip()
            browser = playwright.chromium.launch(executable_path=chromium(), args=list(FLAGS))
            found = taken(browser, client.connection.url, token, list(routes(*jobs)), folder)
            browser.close()
    images = ROOT / "docs" / "images"
    images.mkdir(exist_ok=True)
    for path in found:
        if path.stem in README:
            (images / README[path.stem]).write_bytes(path.read_bytes())
    print(f"{len(found)} pictures in {folder}")


if __name__ == "__main__":
    main(sys.argv[1:])
