"""Secrets in what a user submitted, hidden wherever a job is shown.

A job's command, folder and environment are shown to everyone who may see the job: the members of its tenant,
viewers included, and admins. Tokens and passwords must not be read there. These count as secrets:

- the value of a variable or option whose name says so: TOKEN, KEY, SECRET, PASSWORD, CREDENTIALS ...;
- the password in an address (`postgres://me:PASSWORD@db`), and what follows `Bearer` or `Basic`;
- text in the form of a well-known token (`hf_...`, `ghp_...`, `AKIA...`) and private keys;
- the value of a secret variable, also where the command repeats it.

References such as `$HF_TOKEN` are shown: they hold no secret. A rule by name and form cannot find every
secret: one that stands in a script as plain text is shown. The time of every pattern is linear in the text,
because the text is a user's.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence

HIDDEN = "(hidden)"
_MARK = (
    "\ue000"  # stands for HIDDEN until the end: to the patterns it is part of a word, so a rest is hidden too
)
SHORTEST = 4  # characters of a secret that is searched for in other text; shorter ones would hide half of it

# Names with one of these parts are of secrets, whatever the value is.
_ALWAYS = ("SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL", "COOKIE", "WEBHOOK")
_ALWAYS_WORDS = frozenset({"PASS", "PW", "JWT", "BEARER", "AUTHORIZATION", "DSN"})
# Names in which a word ends so are of secrets, unless the value is a number or a switch (MAX_TOKENS=512).
_ENDINGS = ("TOKEN", "TOKENS", "KEY", "KEYS")
_SWITCHES = frozenset({"", "true", "false", "yes", "no", "on", "off", "none", "null"})
_NUMBER = re.compile(r"[-+]?[0-9]{0,7}(?:\.[0-9]{0,7})?(?:[eE][-+]?[0-9]{1,3})?")

_VALUE = r"""(?>"(?:[^"\\]|\\.)*+"|'[^']*+'|[^\s"'&;|()<>,]++)"""
_PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----[^-]*+(?:-----END [A-Z ]{0,40}PRIVATE KEY-----)?"
)
_AFTER_SCHEME = re.compile(r"(?<![\w-])((?:Bearer|Basic)\s++)([\w.~+/=\ue000-]{8,})", re.IGNORECASE)
_ASSIGNED = re.compile(rf"""(?<![\w.-])([A-Za-z_-][\w.-]*+)(["']?\s*+[=:]\s*+)({_VALUE})""")
_OPTION = re.compile(rf"(?<![\w.-])(--?[A-Za-z][\w-]*+)(\s++)({_VALUE})")
_IN_ADDRESS = re.compile(r"(://[^\s/:@\"']{0,200}:)([^\s/@\"']{1,1000})(?=@)")
_AS_USER = re.compile(r"(://)([^\s/:@\"']{20,1000})(?=@)")
_WELL_KNOWN = re.compile(
    r"(?<![A-Za-z0-9])(?:dt_[\w-]{43}|hf_[A-Za-z0-9]{20,}|gh[opusr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}"
    r"|glpat-[\w-]{20,}|sk-[\w-]{20,}|AKIA[0-9A-Z]{16}|xox[abprs]-[\w-]{10,})"
)


def is_secret(name: str, value: str) -> bool:
    """Whether the value of a variable or option is a secret, by its name.

    >>> [is_secret(name, "abc") for name in ("HF_TOKEN", "apiKey", "--db-password", "TOKENIZERS_PARALLELISM")]
    [True, True, True, False]
    >>> is_secret("MAX_TOKENS", "4096"), is_secret("PASSWORD", "4096")
    (False, True)
    """
    upper = name.upper()
    words = {word.upper() for word in _words(name)}
    if any(part in upper for part in _ALWAYS) or words & _ALWAYS_WORDS or words >= {"DB", "PWD"}:
        return bool(value)
    if not any(word.endswith(_ENDINGS) for word in words) and not upper.endswith("AUTH"):
        return False
    return value.lower() not in _SWITCHES and _NUMBER.fullmatch(value) is None


def shown_env(env: Mapping[str, str]) -> dict[str, str]:
    """The variables by name, secrets hidden."""
    secrets = secrets_of(env)
    return {
        name: HIDDEN if is_secret(name, value) else shown_text(value, secrets)
        for name, value in sorted(env.items())
    }


def secrets_of(env: Mapping[str, str]) -> tuple[str, ...]:
    """The values that must not be shown anywhere, the longest first."""
    found = {value for name, value in env.items() if is_secret(name, value) and len(value) >= SHORTEST}
    return tuple(sorted(found, key=lambda value: (-len(value), value)))


def shown_text(text: str, secrets: Collection[str] = ()) -> str:
    """Text of a command, secrets hidden.

    >>> shown_text("HF_TOKEN=abc train.py --api-key xyz --lr 0.1 --token $HF_TOKEN")
    'HF_TOKEN=(hidden) train.py --api-key (hidden) --lr 0.1 --token $HF_TOKEN'
    """
    for secret in secrets:
        text = text.replace(secret, _MARK)
    text = _PRIVATE_KEY.sub(_MARK, text)
    for pattern in (_AFTER_SCHEME, _IN_ADDRESS, _AS_USER):
        text = pattern.sub(_second_hidden, text)
    text = _WELL_KNOWN.sub(_MARK, text)
    for pattern in (_ASSIGNED, _OPTION):
        text = pattern.sub(_value_hidden, text)
    return text.replace(_MARK, HIDDEN)


def shown_words(words: Sequence[str], secrets: Collection[str] = ()) -> list[str]:
    """The words of a command; a word may be the value of the option before it."""
    return list(_shown_words(words, secrets))


def _shown_words(words: Sequence[str], secrets: Collection[str]) -> Iterator[str]:
    before = ""
    for word in words:
        option = before.startswith("-") and "=" not in before and not word.startswith(("-", "$"))
        yield HIDDEN if option and is_secret(before, word) else shown_text(word, secrets)
        before = word


def _second_hidden(match: re.Match[str]) -> str:
    return match[0] if _is_reference(match[2]) else match[1] + _MARK


def _value_hidden(match: re.Match[str]) -> str:
    name, between, value = match.groups()
    plain = value.strip("\"'")
    if _is_reference(plain) or plain.startswith("-") or not is_secret(name, plain):
        return match[0]
    return f"{name}{between}{_MARK}"


def _is_reference(value: str) -> bool:
    """Whether it is no value but names one."""
    return value.startswith(("$", "`", "{"))


def _words(name: str) -> list[str]:
    return [word for word in re.split(r"[^A-Za-z0-9]+|(?<=[a-z0-9])(?=[A-Z])", name) if word]
