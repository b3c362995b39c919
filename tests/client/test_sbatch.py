"""`#SBATCH` scripts: the meaning of every option, and the options without effect."""

from __future__ import annotations

import subprocess
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from dovetail.client.job_request import JobFile, JobFileError
from dovetail.client.sbatch import read_script, slurm_seconds, slurm_time
from dovetail.control.request import command_of, parse_request

NOW = datetime(2026, 11, 20, 15, 30)

LIGHTNING = """\
#!/bin/bash -l
# A typical script.
#SBATCH --job-name=fit
#SBATCH -p gpu -A research   # accounting
#SBATCH --nodes=2
#SBATCH --gres=gpu:a100:4
#SBATCH --ntasks-per-node=4
#SBATCH -c 8
#SBATCH --mem=0
#SBATCH -t 1-12
#SBATCH --signal=SIGUSR1@90
#SBATCH --mail-type=ALL
#SBATCH -w gpu[01-02]
#SBATCH -o "logs/%x %j.out"
#SBATCH --array=0-9%2
#SBATCH --requeue

module load cuda
#SBATCH --hold
srun --kill-on-bad-exit=1 python train.py
"""


def script(*options: str, body: str = "python train.py") -> JobFile:
    lines = "".join(f"#SBATCH {option}\n" for option in options)
    return read_script(
        f"#!/bin/bash\n{lines}{body}\n", "job.sh", {"HOME": "/h", "SSH_TTY": "x", "A": "1"}, NOW
    )


def test_a_typical_script() -> None:
    found = read_script(LIGHTNING, "job.sh")
    run = found.pop("run")
    assert dict(found) == {
        "name": "fit",
        "queue": "research",
        "nodes": 2,
        "resources": {"accelerators": "a100:4", "cpus": 32},
        "launch": "gpu",
        "time": "129600s",
        "signal_before": "90s",
        "output": "logs/%x %j.out",
        "array": "0-9%2",
        "retry": {"on": ["preempted", "node-failure"], "max": 5},
        "workdir": str(Path.cwd()),
        "slurm_env": True,
    }
    assert [(one.what, one.line) for one in found.ignored] == [
        ("--mail-type ALL", 12),
        ("-w gpu[01-02]", 13),
        ("-p gpu", 4),
        ("--mem 0", 9),
    ]
    assert run.replace(run.splitlines()[1] + "\n", "") == LIGHTNING  # except for the srun function
    assert found.where("/resources/accelerators") == "job.sh, line 6"
    parse_request({**found, "run": run})


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["-J fit"], {"name": "fit"}),
        (["-Jfit"], {"name": "fit"}),
        (["--job-name fit"], {"name": "fit"}),
        (["--job-name='two words'"], {"name": "two words"}),
        (["-J a", "-J b"], {"name": "b"}),
        (["-p gpu"], {"queue": "gpu"}),
        (["-A team"], {"queue": "team"}),
        (["-q long"], {"queue": "long"}),
        (["-t 30"], {"time": "1800s"}),
        (["-t 30:00"], {"time": "1800s"}),
        (["--time=UNLIMITED"], {}),
        (["-N 2"], {"nodes": 2}),
        (["-N 1-1"], {"nodes": 1}),
        (["-G 4"], {"resources": {"accelerators": "any:4"}}),
        (["--gpus=a100:4"], {"resources": {"accelerators": "a100:4"}}),
        (["-N 2", "-G 8"], {"nodes": 2, "resources": {"accelerators": "any:4"}}),
        (["--gpus-per-node=v100:2"], {"resources": {"accelerators": "v100:2"}}),
        (["--gpus-per-node=v100"], {"resources": {"accelerators": "v100:1"}}),
        (["--gpus-per-task=2 -n 2"], {"resources": {"accelerators": "any:4", "cpus": 2}}),
        (["--gres=gpu"], {"resources": {"accelerators": "any:1"}}),
        (["--gres=gpu:4"], {"resources": {"accelerators": "any:4"}}),
        (["--gres=gpu:a100:4(S:0-1)"], {"resources": {"accelerators": "a100:4"}}),
        (["--gres=none"], {}),
        (["-c 8"], {"resources": {"cpus": 8}}),
        (["-n 4 -c 2"], {"resources": {"cpus": 8}}),
        (["-N 2 -n 8 -c 2"], {"nodes": 2, "resources": {"cpus": 8}}),
        (["-G 2 --cpus-per-gpu=6"], {"resources": {"accelerators": "any:2", "cpus": 12}}),
        (["--mem=32G"], {"resources": {"memory": "32G"}}),
        (["--mem=4096"], {"resources": {"memory": "4096M"}}),
        (["-G 4 --mem-per-gpu=16G"], {"resources": {"accelerators": "any:4", "memory": "64G"}}),
        (["-c 4 --mem-per-cpu=2G"], {"resources": {"cpus": 4, "memory": "8G"}}),
        (["-o a.out -e a.err"], {"output": "a.out", "error": "a.err"}),
        (["-a 0-99%8"], {"array": "0-99%8", "output": "slurm-%A_%a.out"}),
        (["-d afterok:k3v9q2"], {"dependency": "afterok:k3v9q2"}),
        (["--begin=now+2hours"], {"begin": "+2h"}),
        (["--deadline=2026-12-01T09:00:00"], {"deadline": datetime(2026, 12, 1, 9).astimezone().isoformat()}),
        (["--signal=B:USR1@300"], {"signal_before": "300s"}),
        (["--signal=USR1"], {"signal_before": "60s"}),
        (["--no-requeue"], {"retry": {"on": [], "max": 0}}),
        (["--nice"], {"priority": -100}),
        (["--nice=-50"], {"priority": 50}),
        (["--nice=2147483645"], {"priority": -1_000_000}),
        (["-H"], {"hold": True}),
        (["--hold -J x"], {"hold": True, "name": "x"}),
        (["-D /data"], {"workdir": "/data"}),
        (["--export=A,B=2"], {"env": {"A": "1", "B": "2"}}),
        (["--export=NONE"], {}),
        (["--export=ALL"], {"env": {"HOME": "/h", "A": "1"}}),
        (["--comment='for ada'"], {"comment": "for ada"}),
        (["", "# nothing"], {}),
    ],
)
def test_what_an_option_means(options: list[str], expected: dict[str, Any]) -> None:
    found = script(*options)
    always = {"output": "slurm-%j.out", "workdir": str(Path.cwd()), "slurm_env": True, "run": found["run"]}
    assert dict(found) == {**always, **expected}
    parse_request(dict(found))


@pytest.mark.parametrize(
    ("option", "what", "why"),
    [
        ("-w n1", "-w n1", "the scheduler chooses"),
        ("-x n1", "-x n1", "the scheduler chooses"),
        ("--mail-user=a@b", "--mail-user a@b", "no mail"),
        ("--exclusive", "--exclusive", "GPUs are shared only on request"),
        ("--exclusive=user", "--exclusive user", "GPUs are shared only on request"),
        ("-C a100", "-C a100", "name the GPU type instead"),
        ("--cpu-bind=cores", "--cpu-bind cores", "no counterpart"),
        ("--container-image=nvcr", "--container-image nvcr", "without a container"),
        ("-N 2-4", "-N 2-4", "2 are used"),
        ("--gres=gpu:1,shard:2", "--gres shard:2", "only generic resource"),
        ("--signal=TERM@60", "--signal TERM@60", "always USR1"),
        ("-n 4 -G 2", "-n 4", "only its CPUs are counted"),
        ("-n 2 -G 2", "-n 2", "without srun the script runs once"),
        ("-p a -q b", "-q b", "-p a names the tenant already"),
        ("--export=NOT_SET", "--export NOT_SET", "is not set here"),
    ],
)
def test_options_without_effect_are_listed(option: str, what: str, why: str) -> None:
    (ignored,) = script(option).ignored
    assert ignored.what == what
    assert why in ignored.why
    assert ignored.line == 2


@pytest.mark.parametrize(
    ("option", "problem"),
    [
        ("-t soon", "-t soon is not understood; write 30 \\(minutes\\)"),
        ("-N two", "write -N 2"),
        ("-N 0", "write -N 2"),
        ("-n x", "write a whole number"),
        ("--gpus=4:a100", "write 4 or a100:4"),
        ("-N 3 -G 8", "cannot be divided among 3 nodes"),
        ("--gres=gpu:a:1,gpu:b:1", "one type at a time"),
        ("--mem=lots", "write 32G"),
        ("--begin=someday", "write now\\+2hours"),
        ("--begin=25:00", "write now\\+2hours"),
        ("--signal=", "needs a value"),
        ("--signal=@", "write B:USR1@300"),
        ("--nice=x", "write --nice=100"),
        ("-J", "-J needs a value"),
        ("-J 'a", "the quotes do not match"),
        ("stray", "'stray' is not an option"),
    ],
)
def test_an_error_names_the_line(option: str, problem: str) -> None:
    with pytest.raises(JobFileError, match=f"job.sh, line 2: .*{problem}"):
        script(option)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 1_800), ("30:30", 1_830), ("1:30:00", 5_400), ("1-0", 86_400), ("1-12:30", 131_400),
        ("0-0:0:5", 5), ("infinite", 0), ("0", 0),
    ],
)  # fmt: skip
def test_a_number_without_a_unit_is_minutes(text: str, seconds: int) -> None:
    assert slurm_seconds(text) == seconds


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("now", "+0s"),
        ("now+90", "+90s"),
        ("now+1week", "+1w"),
        ("16:00", datetime(2026, 11, 20, 16)),
        ("15:00", datetime(2026, 11, 21, 15)),
        ("3:30 pm", datetime(2026, 11, 21, 15, 30)),
        ("12:15am", datetime(2026, 11, 21, 0, 15)),
        ("midnight", datetime(2026, 11, 21)),
        ("teatime", datetime(2026, 11, 20, 16)),
        ("tomorrow", datetime(2026, 11, 21, 15, 30)),
        ("2026-12-01", datetime(2026, 12, 1)),
    ],
)
def test_times_are_in_the_local_zone(text: str, expected: str | datetime) -> None:
    when = expected if isinstance(expected, str) else expected.astimezone().isoformat()
    assert slurm_time(text, NOW) == when
    parse_request({"run": "x", "begin": when})


@pytest.mark.parametrize(
    ("call", "output"),
    [
        ("srun echo a b", "a b"),
        ("srun -n 4 --gpus-per-task=1 -l --cpu-bind none echo a -n", "a -n"),
        ("srun -n4 -- echo x", "x"),
        ("X=1 srun printenv X", "1"),
        ("srun \\\n  --ntasks 2 echo y", "y"),
        ("srun -n", ""),
    ],
)
def test_srun_runs_its_command_in_place(call: str, output: str) -> None:
    argv, _ = command_of(parse_request(dict(script("-n 1", body=call))))
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout.strip(), done.stderr) == (output, "")


def test_a_script_without_srun_is_unchanged() -> None:
    text = "#!/usr/bin/env python3\n#SBATCH -J x\nsrun = 1\nprint('srun')\n"
    assert read_script(text)["run"] == text
    text = "#!/bin/bash\n# srun is not used\necho srun\n"
    assert read_script(text)["run"] == text


@pytest.mark.parametrize(
    ("option", "error"),
    [
        ("--tiem=5", "line 2: unknown option --tiem; did you mean --time?"),
        ("--job_name=a", "line 2: unknown option --job_name; did you mean --job-name?"),
        (
            "--unheard-of=1",
            "line 2: unknown option --unheard-of, which Slurm does not have either; leave it out",
        ),
        ("-y 1", "line 2: unknown option -y, which Slurm does not have either; leave it out"),
    ],
)
def test_an_option_that_slurm_does_not_have_is_refused(option: str, error: str) -> None:
    with pytest.raises(JobFileError) as refused:
        script(option)
    assert error in str(refused.value)


def test_the_beginning_of_an_option_is_enough_as_in_slurm() -> None:
    assert script("--part=red")["queue"] == "red"
    with pytest.raises(JobFileError, match="unknown option --gpus-per;"):  # of several
        script("--gpus-per=1")
