"""Times as people read and write them: `12 min ago`, `Tue 14:20`, `yesterday`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dovetail.cli.outputs import plainly
from dovetail.model.errors import InputError
from dovetail.model.formats import duration

if TYPE_CHECKING:
    from datetime import datetime

    from dovetail.client.documents import Span


def now() -> datetime:
    from datetime import UTC, datetime

    return datetime.now(UTC)


def lasting(seconds: float | None) -> str:
    """`12 min`, `2 h 30 min`; `-` if it is not known."""
    return "-" if seconds is None else duration(round(max(seconds, 0.0)))


def since(text: Any) -> float | None:
    """Seconds since a time."""
    from dovetail.client.documents import moment

    at = moment(text)
    return (now() - at).total_seconds() if hasattr(at, "tzinfo") else None


def ago(text: Any) -> str:
    """`12 min ago`, `in 3 h`."""
    passed = since(text)
    if passed is None:
        return "-"
    if abs(passed) < 1:
        return "now"
    return f"{lasting(passed)} ago" if passed > 0 else f"in {lasting(-passed)}"


def clock(text: Any) -> str:
    """A time on the local clock, as short as possible."""
    from dovetail.client.documents import moment

    at = moment(text)
    if not hasattr(at, "astimezone"):
        return "-"
    local, today = at.astimezone(), now().astimezone()
    if abs((local - today).total_seconds()) < 16 * 3600 and local.date() == today.date():
        return str(local.strftime("%H:%M"))
    if abs((local - today).total_seconds()) < 6 * 86_400:
        return str(local.strftime("%a %H:%M"))
    return str(local.strftime("%Y-%m-%d %H:%M"))


def expected(span: Span | None) -> str:
    """`about 14:20 (in 12 min), between 14:05 and 15:30`; empty if unknown."""
    if span is None or span.likely is None:
        return ""
    likely = span.likely.isoformat()
    if (since(likely) or 0.0) >= -1:
        return "now"
    text = f"about {clock(likely)} ({ago(likely)})"
    if span.low is not None and span.high is not None and span.low != span.high:
        low, high = clock(span.low.isoformat()), clock(span.high.isoformat())
        text += f", between {low} and {high}" if low != high else ""
    return text


def read_moment(text: str, option: str) -> str:
    """`3d` (ago), `2026-11-01`, `2026-11-01T09:00`, `today` or `yesterday` as the API takes times."""
    from datetime import UTC, datetime, timedelta

    from dovetail.model.units import parse_duration, seconds

    word = text.strip().lower()
    if word.isdecimal():
        raise InputError(f"{option} {word} has no unit; write {word}d (days ago), {word}h, or 2026-11-01")
    midnight = now().astimezone().replace(hour=0, minute=0, second=0, microsecond=0)
    if word in ("today", "yesterday"):
        at = midnight - timedelta(days=word == "yesterday")
    else:
        try:
            at = datetime.fromisoformat(text.strip())
            at = at if at.tzinfo else at.astimezone()
        except ValueError:
            try:
                at = now() - timedelta(seconds=seconds(parse_duration(word)))
            except (ValueError, OverflowError):
                raise InputError(
                    f"{option} {plainly(text)!r} is not a time; write 3d (ago), today, or 2026-11-01T09:00"
                ) from None
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")
