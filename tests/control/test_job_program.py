"""What a job runs is shown: its command, folder and environment, and no secret in clear."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.control import test_api as api
from tests.control.test_api import Live

from dovetail.control.hidden_secrets import HIDDEN, is_secret, shown_text, shown_words
from dovetail.control.job_program import LONGEST_TEXT, program_document
from dovetail.testing.search import searched

SECRET = "s3cr3t-Zq81"


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with api.living(tmp_path_factory.mktemp("plane"), api.FAST) as made:
        yield made


def test_a_job_and_an_array_show_what_they_run(live: Live) -> None:
    env = {"LR": 0.1, "DEBUG": True, "WANDB_API_KEY": SECRET, "DATA_URL": f"s3://me:{SECRET}x@store/a"}
    asked = {"workdir": "/srv/project", "setup": "pip list", "env": env, "hold": True}
    job = live.submit("ann", **asked, run=f"python train.py --token {SECRET}\necho done")
    shown = live.get(f"jobs/{job}", "ann")
    assert shown["run"] == f"python train.py --token {HIDDEN}\necho done"
    assert (shown["command"], shown["setup"], shown["workdir"]) == (None, "pip list", "/srv/project")
    assert shown["env"] == {
        "LR": "0.1",
        "DEBUG": "true",
        "WANDB_API_KEY": HIDDEN,
        "DATA_URL": f"s3://me:{HIDDEN}@store/a",
    }
    words = ["python", "train.py", "--api-key", SECRET, f"--password={SECRET}", "--lr", "0.1"]
    array = live.ask("POST", "jobs", "ann", {**asked, "command": words, "array": "0-3"}).json["id"]
    for found in (live.get(f"jobs/{array}", "ann"), live.get(f"jobs/{array}_2", "ann")):
        assert (found["run"], found["workdir"]) == (None, "/srv/project")
        assert found["command"] == [*words[:3], HIDDEN, f"--password={HIDDEN}", *words[5:]]
        assert found["env"]["WANDB_API_KEY"] == HIDDEN


def test_no_answer_about_a_job_holds_a_secret(live: Live) -> None:
    job = live.submit("ann", env={"HF_TOKEN": SECRET}, run=f"export HF_TOKEN={SECRET}; curl -u me:{SECRET} x")
    live.until(job, "running")
    live.ask("POST", f"jobs/{job}/cancel", "ann")
    live.until(job, "cancelled")
    paths = (f"jobs/{job}", f"jobs/{job}/why", f"jobs/{job}/attempts", "jobs", "jobs?fold=true", "history")
    for path in (*paths, "journal?limit=200"):
        for user in ("admin", "ann") if path in paths else ("admin",):
            assert SECRET not in live.ask("GET", path, user).text, path
    listed = next(item for item in live.get("jobs", "ann")["items"] if item["id"] == job)
    assert not {"run", "command", "setup", "workdir", "env"} & listed.keys()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("export WANDB_API_KEY='abc def'; run", "export WANDB_API_KEY=(hidden); run"),
        ('curl -H "X-Api-Key: zzz" u', 'curl -H "X-Api-Key: (hidden)" u'),
        ("curl -H 'Accept: Bearer abcdefgh12'", "curl -H 'Accept: Bearer (hidden)'"),
        ("psql postgres://me:pw@db/x", "psql postgres://me:(hidden)@db/x"),
        ("git clone https://ghp_abcdefghijklmnopqrst0123@h", "git clone https://(hidden)@h"),
        ("login hf_abcdefghijklmnopqrstuv", "login (hidden)"),
        ('{"api_key": "abc"}', '{"api_key": (hidden)}'),
        ("aws configure set aws_secret_access_key abc=", "aws configure set aws_secret_access_key abc="),
        ("-----BEGIN RSA PRIVATE KEY-----\nMII\n-----END RSA PRIVATE KEY-----", "(hidden)"),
        # what is no secret stays as it is
        ("train --max-tokens 4096 --key-dim=64", "train --max-tokens 4096 --key-dim=64"),
        ('TOKEN=$(cat f) run --token "$TOKEN"', 'TOKEN=$(cat f) run --token "$TOKEN"'),
        ("ssh git@host; for key in a b; do x; done", "ssh git@host; for key in a b; do x; done"),
        ("TOKENIZERS_PARALLELISM=false KEYBOARD=us x", "TOKENIZERS_PARALLELISM=false KEYBOARD=us x"),
    ],
)
def test_secrets_in_a_command_are_hidden_and_the_rest_is_not(text: str, shown: str) -> None:
    assert shown_text(text) == shown
    assert shown_text(shown) == shown


SECRET_NAMES = (
    "HF_TOKEN",
    "api_key",
    "AWS_SECRET_ACCESS_KEY",
    "DB_PASSWORD",
    "ghToken",
    "GOOGLE_CREDENTIALS",
)
values = st.text("qxz0123456789#%/.-", min_size=8, max_size=40).filter(lambda text: not text.startswith("-"))


@given(
    secret=values, name=st.sampled_from(SECRET_NAMES), wrap=st.sampled_from(["{}", "a{}b", "'{}'", "x={}"])
)
@searched(60)
def test_a_secret_variable_is_in_clear_nowhere(secret: str, name: str, wrap: str) -> None:
    if not is_secret(name, secret):  # a short number is no token
        return
    text = wrap.format(secret)
    body = {"env": {name: secret, "OTHER": text}, "setup": text, "workdir": "/w"}
    for said in ({"run": f"{text}\n{name}={secret}"}, {"command": ["do", text, f"--{name}", secret]}):
        assert secret not in json.dumps(program_document(body | said), ensure_ascii=False)


def test_long_text_is_cut_and_no_secret_is_cut_in_two() -> None:
    secret = "q" * 300
    for before in range(LONGEST_TEXT - 320, LONGEST_TEXT + 1, 20):
        text = "x " * (before // 2) + secret + " and more" * 3_000
        found = program_document({"env": {"TOKEN": secret}, "run": text, "command": text.split(" ")})
        assert len(found["run"].encode()) <= LONGEST_TEXT
        assert "qqq" not in json.dumps(found)
    many = program_document({"run": "x", "env": {f"V{n}": "v" * 5_000 for n in range(200)}})["env"]
    assert len(many) == 200
    assert sum(map(len, many.values())) < 2 * LONGEST_TEXT


@pytest.mark.parametrize(
    "piece", ["a", 'a="', "key: ", "key='", "--k ", "://a:", "://" + "a" * 900, "Bearer "]
)
def test_hostile_text_takes_no_longer_than_it_is_long(piece: str) -> None:
    def seconds(size: int) -> float:
        text = piece * (size // len(piece))
        began = time.process_time()
        shown_text(text)
        return time.process_time() - began

    assert seconds(200_000) < 40 * (seconds(20_000) + 0.01)


def test_words_that_follow_an_option_are_its_value() -> None:
    assert shown_words(["x", "--token", "abc", "--token", "$T", "--token", "--fast"]) == [
        *("x", "--token", HIDDEN, "--token", "$T", "--token", "--fast")
    ]
