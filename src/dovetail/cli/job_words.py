"""Where the command of a job begins among the words of `submit`, `plan` and `run`.

`--` always marks it. Without it, the first word that is no option begins the command if it is a program:
`submit --gpus 1 python train.py --lr 3`.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from dovetail.cli.outputs import plainly
from dovetail.model.errors import InputError


def options_with_values(parameters: Sequence[Any]) -> set[str]:
    """The options of a command that take the next word as their value."""
    options = [one for one in parameters if one.param_type_name == "option" and not one.is_flag]
    return {name for one in options for name in one.opts}


def first_word(words: Sequence[str], valued: Collection[str]) -> int:
    """The place of the first word that is neither an option nor the value of one; of `--` too."""
    at = 0
    while at < len(words):
        word = words[at]
        if word in ("-", "--") or not word.startswith("-"):
            return at
        at += 2 if _takes_next(word, valued) else 1
    return len(words)


def _takes_next(word: str, valued: Collection[str]) -> bool:
    if word.startswith("--"):
        return word in valued
    taking = [at for at in range(1, len(word)) if f"-{word[at]}" in valued]
    return bool(taking) and taking[0] == len(word) - 1  # else its value is in the same word: -G4


def is_script_file(word: str) -> bool:
    """A file that is read as a script, so that the words after it are its arguments."""
    from dovetail.client.jobfile import is_script

    try:
        with Path(word).open("rb") as file:
            return is_script(file.read(100_000).decode("utf-8", "replace"), word)
    except OSError:
        return False


def parted(words: Sequence[str], valued: Collection[str]) -> tuple[list[str], list[str], list[str]]:
    """What is for the command itself, the options that only Slurm has, and the words that are no options."""
    own: list[str] = []
    slurm: list[str] = []
    plain: list[str] = []
    at = 0
    while at < len(words):
        word = words[at]
        name, equals, value = word.partition("=")
        if name in SLURM_ONLY or (name == "--export" and value in ("ALL", "NONE")):
            takes = SLURM_ONLY.get(name, True) and not equals
            slurm += words[at : at + 2] if takes else [word]
        elif word.startswith("-") and word != "-":
            takes = _takes_next(word, valued)
            own += words[at : at + 2] if takes else [word]
        else:
            takes = False
            plain.append(word)
        at += 2 if takes else 1
    return own, slurm, plain


# Options of sbatch that submit has not, and whether they take a value.
SLURM_ONLY = {
    **dict.fromkeys(("--exclusive", "--requeue", "--no-requeue", "--nice", "--test-only"), False),
    **dict.fromkeys(
        (
            *("-n", "--ntasks", "--ntasks-per-node", "--gres", "--gpus-per-node", "--gpus-per-task"),
            *("--cpus-per-gpu", "--mem-per-cpu", "--mem-per-gpu", "--signal", "--mail-type", "--mail-user"),
            *("-C", "--constraint", "-w", "--nodelist", "-x", "--exclude", "--reservation"),
        ),
        True,
    ),
}


SLURM_ONLY_VALUED = {name for name, takes in SLURM_ONLY.items() if takes}


def begins_command(word: str) -> bool:
    """A program on the PATH, or a binary; any other file is read as a job file or a script."""
    if word == "-" or shutil.which(word) is None:
        return False
    path = Path(word)
    if not path.is_file():
        return True
    try:
        with path.open("rb") as file:
            return b"\0" in file.read(1024)
    except OSError:
        return False


def check_is_there(words: Sequence[str], at: int) -> None:
    """Refuse a command that is no program here before its own options are taken for ours."""
    if at + 1 >= len(words) or words[at] in ("-", "--"):
        return
    word = words[at]
    if not Path(word).suffix and not Path(word).exists() and shutil.which(word) is None:
        raise InputError(
            plainly(f"{word} is neither a file here nor a program on the PATH; write -- before a command")
        )


def check_not_program(verb: str, words: Sequence[str], at: int) -> None:
    """Refuse a Python program where a job file or a command belongs, and say what to type."""
    if at < len(words) and is_python_program(words[at]):
        better = shlex.join(["dovetail", verb, *words[:at], "--", "python", *words[at:]])
        raise InputError(plainly(f"{words[at]} is a Python program, not a job file; write {better}"))


def is_python_program(word: str) -> bool:
    """A file that only Python can start: a script begins with `#!` or has #SBATCH lines."""
    from dovetail.client.jobfile import is_script

    path = Path(word)
    if path.suffix != ".py" or not path.is_file():
        return False
    try:
        return not is_script(path.read_text(encoding="utf-8", errors="replace"), word)
    except OSError:
        return False
