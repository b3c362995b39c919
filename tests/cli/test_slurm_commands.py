"""Slurm's commands on the PATH, on a real plane: what fingers that know Slurm type, and what scripts call."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator

import pytest
from tests.cli.test_habits import DOVETAIL, Place, Terminal, place_in
from tests.control.harness import eventually


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with place_in(tmp_path_factory.mktemp("slurm")) as made:
        done = made.type("slurm-commands", "--into", "slurm")
        assert done.returncode == 0, done.stderr
        yield made


def test_nothing_is_put_on_the_path_unasked(place: Place) -> None:
    folder = place.folder / "elsewhere"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "squeue").write_text("#!/bin/sh\necho mine\n")
    done = place.type("slurm-commands", "--into", str(folder / "deep"))
    assert (done.returncode, done.stdout) == (2, "")
    assert os.listdir(folder / "deep") == ["squeue"]
    again = place.type("slurm-commands", "--into", "slurm")
    assert again.returncode == 0, again.stderr
    assert sorted(os.listdir(place.folder / "slurm")) == sorted(
        ["sbatch", "srun", "squeue", "scancel", "sinfo", "scontrol"]
    )
    assert "export PATH=" in again.stdout


def test_sbatch_submits_as_slurm_does(place: Place) -> None:
    (place.folder / "habit.sh").write_text(
        '#!/bin/bash\n#SBATCH -t 30\n#SBATCH --gres=gpu:1\necho "$1 on $SLURM_JOB_NODELIST with $FROM_HERE"\n'
    )
    done = place.shell("FROM_HERE=me sbatch -J habit -t 90 --mail-type=ALL habit.sh first")
    assert done.returncode == 0, done.stderr
    assert "--mail-type ALL is ignored: no mail is sent" in done.stderr
    match = re.fullmatch(r"Submitted batch job (\w+)\n", done.stdout)
    assert match is not None
    job = place.client.job_info(match[1])
    assert (job.name, job.time_limit, job.gpus) == ("habit", 90 * 60, 1)
    eventually(lambda: place.client.job_info(job.id).done)
    assert re.fullmatch(r"first on n\d with me\n", (place.folder / f"slurm-{job.id}.out").read_text())
    waited = place.shell("sbatch --parsable --wait --wrap 'exit 5'")
    assert waited.returncode == 5
    assert place.client.job_info(waited.stdout.strip()).exit_code == 5
    asked = place.shell("sbatch --test-only habit.sh")
    assert (asked.returncode, asked.stdout.startswith("sbatch: it would start")) == (0, True)


def test_squeue_and_scancel(place: Place) -> None:
    id = place.shell("sbatch --parsable --hold -J waits --wrap true").stdout.strip()
    array = place.shell("sbatch --parsable --hold --array=0-4 -J many --wrap true").stdout.strip()
    listed = place.shell("squeue --me").stdout.splitlines()
    assert listed[0].split() == [
        "JOBID",
        "PARTITION",
        "NAME",
        "USER",
        "ST",
        "TIME",
        "NODES",
        "NODELIST(REASON)",
    ]
    rows = {line.split()[0]: line.split() for line in listed[1:]}
    assert rows[id][2:] == ["waits", rows[id][3], "PD", "0:00", "1", "(JobHeldUser)"]
    assert rows[f"{array}_[0-4]"][4] == "PD"
    assert place.shell(f"squeue -h -j {id} -o '%i|%.5j|%T'").stdout == f"{id}|waits|PENDING\n"
    wrong = place.shell("squeue -o %Y")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "%Y" in wrong.stderr
    done = place.shell(f"scancel {id} '{array}_[0-2]'")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert place.client.job_info(id).state == "cancelled"
    assert place.client.job_info(f"{array}_2").state == "cancelled"
    assert place.client.job_info(f"{array}_3").state == "held"
    assert place.shell("scancel -n many").returncode == 0
    assert place.client.job_info(f"{array}_4").state == "cancelled"
    missing = place.shell("scancel nosuch")
    assert (missing.returncode, "nosuch" in missing.stderr) == (2, True)
    assert place.shell("scancel").returncode == 2


def test_sinfo_and_scontrol(place: Place) -> None:
    eventually(lambda: not list(place.client.jobs(active=True)))
    assert place.shell("sinfo").stdout.splitlines() == [
        "PARTITION  AVAIL TIMELIMIT  NODES  STATE  NODELIST",
        "all*       up    infinite   2      idle   n[0-1]",
    ]
    assert place.shell("sinfo -h -N -o '%N %G'").stdout == "n0 gpu:a100:4\nn1 gpu:a100:4\n"
    assert place.shell("scontrol update NodeName=n1 State=DRAIN Reason=fan").returncode == 0
    assert place.shell("sinfo -h -o '%t %N'").stdout.splitlines() == ["idle n0", "drain n1"]
    assert place.shell("scontrol update NodeName=n1 State=RESUME").returncode == 0
    assert place.shell("scontrol show hostnames 'gpu[01-03],n7'").stdout.split() == [
        "gpu01", "gpu02", "gpu03", "n7",
    ]  # fmt: skip
    refused = place.shell("scontrol reconfigure")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "show hostnames" in refused.stderr


def test_a_script_finds_the_address_of_its_first_node(place: Place) -> None:
    (place.folder / "master.sh").write_text(
        "#!/bin/bash\n#SBATCH -N 2 --gpus-per-node=4\n"
        'export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)\n'
        "srun echo $MASTER_ADDR of $(scontrol show hostnames | wc -l)\n"
    )
    id = place.shell("sbatch --parsable --wait master.sh").stdout.strip()
    assert place.client.job_info(id).state == "completed"
    assert (place.folder / f"slurm-{id}.out").read_text().splitlines() == ["127.0.0.1 of 2"] * 2


def test_srun_runs_waits_and_has_a_terminal(place: Place) -> None:
    done = place.shell("srun --gres=gpu:1 -t 5 sort", stdin="b\na\n")
    assert (done.returncode, done.stdout) == (0, "a\nb\n"), done.stderr
    newest = place.jobs()[0]
    assert (newest.gpus, newest.time_limit) == (1, 300)
    assert place.shell("srun bash -c 'exit 9'").returncode == 9
    inside = place.shell("srun bash -c 'srun --ntasks=1 echo in place $DOVETAIL_JOB_ID'")
    assert inside.stdout == f"in place {place.jobs()[0].id}\n"
    terminal = Terminal(place, "slurm", "srun", "--pty", "bash", "-c", "tty; exit 4")
    assert terminal.end() == 4
    assert "/dev/pts/" in terminal.text


# --- Slurm's options of dovetail submit ---------------------------------------------------------------


def test_a_script_gets_its_arguments(place: Place) -> None:
    (place.folder / "job.sh").write_text('#!/bin/bash\n#SBATCH -J args\necho "$#: $1|$2"\n')
    for words in (("job.sh", "a b", "2"), ("job.sh", "--", "a b", "2"), ("job.sh", "a b", "-G", "1", "2")):
        done = place.type("submit", "--parsable", "--wait", *words)
        assert done.returncode == 0, done.stderr
        id = done.stdout.strip()
        assert (place.folder / f"slurm-{id}.out").read_text() == "2: a b|2\n"
    assert place.client.job_info(id).gpus == 1


def test_options_of_slurm_are_understood(place: Place) -> None:
    (place.folder / "env.sh").write_text(
        "#!/bin/bash\n#SBATCH --gres=gpu:1\necho $CUDA_VISIBLE_DEVICES $MINE\n"
    )
    done = subprocess.run(
        [*DOVETAIL, "submit", "--parsable", "--wait", "--gres=gpu:2", "-n", "1", "--export=ALL",
         "--exclusive", "--mail-type=END", "env.sh"],
        capture_output=True, text=True, cwd=place.folder, env={**place.env, "MINE": "kept"}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    id = done.stdout.strip()
    assert "--mail-type END is ignored: no mail is sent" in done.stderr
    assert "--exclusive is ignored: " in done.stderr
    assert place.client.job_info(id).gpus == 2
    printed = (place.folder / f"slurm-{id}.out").read_text().split()
    assert (len(printed[0].split(",")), printed[1]) == (2, "kept")


@pytest.mark.parametrize(
    ("words", "gpus"),
    [
        (("--gres=gpu:2",), 2),
        (("--gres", "gpu:a100:2"), 2),
        (("--gpus-per-node=2", "-N", "2"), 4),
        (("--gpus-per-node", "1"), 1),
        (("-n", "2", "--gpus-per-task=1"), 2),
    ],
)
def test_gpus_in_slurms_words(place: Place, words: tuple[str, ...], gpus: int) -> None:
    for verb in ("submit --parsable", "run --detach"):
        done = place.type(*verb.split(), "--hold", *words, "--", "true")
        assert done.returncode == 0, done.stderr
        assert place.client.job_info(done.stdout.strip()).gpus == gpus
        place.client.cancel(done.stdout.strip())


@pytest.mark.parametrize("words", [("--gres=fpga",), ("--gpus-per-node=4x",), ("-n", "0"), ("--test-only",)])
def test_what_cannot_be_honoured_is_one_line(place: Place, words: tuple[str, ...]) -> None:
    done = place.type("submit", "--parsable", "--hold", *words, "--", "true")
    assert done.stderr.count("\n") == 1, done.stderr
    assert words[0].partition("=")[0] in done.stderr
    if done.returncode == 0:
        assert "is ignored" in done.stderr
        place.client.cancel(done.stdout.strip())
