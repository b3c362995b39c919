"""A state folder and its database belong together: both keep the same id.

The folder has the attempts and the checkpoints, the database the jobs. A plane with the folder of another
database would stop the attempts of that one as unknown; a plane with another folder would start attempts
again that run already. Planes on one PostgreSQL share the state folder.

The id is written to the folder first, marked as unbound, so that a first start that was interrupted is not
taken for a folder whose database is lost. It is durable there before the database has it: after a power cut
the folder would seem to be emptied.
"""

from __future__ import annotations

import json
import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from dovetail.control import tables
from dovetail.control.store import FOLDER, Store, masked
from dovetail.engines.local.json_files import sync
from dovetail.model.errors import InputError

FILE = "database.json"
_INSERT = sa.text("INSERT INTO meta (key, value) VALUES (:key, :value) ON CONFLICT (key) DO NOTHING")


def check_binding(folder: Path, url: str, store: Store | None) -> None:
    """Refuse a folder and a database that do not belong together. No store: the database does not exist."""
    known = _known(store)  # before the folder is read, which another plane that starts now binds first
    kept = _kept(folder)
    if known is None and kept is not None and kept["bound"]:
        known = _known(store)
    name = masked(url)
    if known is not None and (kept is None or kept["id"] != known["id"]):
        where = known["folder"]
        if where == os.path.abspath(folder):
            problem = f"the state folder {folder} of the database {name} is new or was emptied"
            remedy = "restore it from a backup"
        else:
            problem = f"the database {name} belongs to the state folder {where}, not to {folder}"
            remedy = f"start with --state {where}"
        raise InputError(f"{problem}; {remedy}, or if its files are lost, add --rebind")
    if known is None and kept is not None and kept["bound"]:
        if kept["database"] == name:
            problem = f"the database {name} of the state folder {folder} is new or was emptied"
            remedy = "restore it from a backup"
        else:
            problem = f"the state folder {folder} belongs to the database {kept['database']}, not to {name}"
            remedy = "name it with --database"
        raise InputError(f"{problem}; {remedy}, or if its jobs are lost, add --rebind")


def bind(folder: Path, store: Store, *, rebind: bool = False) -> str:
    """The id of the folder and the database, which get one if they have none.

    With `rebind` they get a new one, whatever they were bound to.
    """
    if rebind:
        with suppress(FileNotFoundError):
            (folder / FILE).unlink()
    else:
        check_binding(folder, store.url, store)
    name = masked(store.url)
    kept = _kept(folder) or _made(folder, {"id": secrets.token_hex(8), "database": name, "bound": False})
    if not kept["bound"]:
        sync(str(folder))
        with suppress(PermissionError):  # it cannot be listed
            sync(str(folder.absolute().parent))  # the folder may be new as well
    row = {"key": FOLDER, "value": json.dumps({"id": kept["id"], "folder": os.path.abspath(folder)})}
    with store.transaction() as connection:
        if rebind:
            connection.execute(sa.delete(tables.meta).where(tables.meta.c.key == FOLDER))
        connection.execute(_INSERT, row)
        known = connection.execute(sa.select(tables.meta.c.value).where(tables.meta.c.key == FOLDER)).scalar()
        if json.loads(known or "{}").get("id") == kept["id"]:  # with its id a folder may be moved
            connection.execute(sa.update(tables.meta).where(tables.meta.c.key == FOLDER).values(**row))
    check_binding(folder, store.url, store)  # another plane may have bound it at the same time
    if not kept["bound"] or kept["database"] != name:
        _replace(folder, {**kept, "database": name, "bound": True})
    return str(kept["id"])


def _known(store: Store | None) -> dict[str, Any] | None:
    """What the database says of its folder."""
    if store is None or not store.has_tables():
        return None
    value = store.value(FOLDER)
    return None if value is None else dict(json.loads(value))


def _kept(folder: Path) -> dict[str, Any] | None:
    """What the folder says of its database."""
    try:
        found = json.loads((folder / FILE).read_text(encoding="utf-8"))
        return {"id": str(found["id"]), "database": str(found["database"]), "bound": bool(found["bound"])}
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{folder / FILE} cannot be read ({type(error).__name__}); restore it from a backup, "
            "or if this folder and this database belong together, add --rebind"
        ) from None


def _made(folder: Path, value: dict[str, Any]) -> dict[str, Any]:
    """Write the file unless another plane, which starts at the same time, was quicker."""
    draft = _draft(folder, value)
    try:
        os.link(draft, folder / FILE)
    except FileExistsError:
        return _kept(folder) or value
    finally:
        draft.unlink()
    return value


def _replace(folder: Path, value: dict[str, Any]) -> None:
    _draft(folder, value).replace(folder / FILE)


def _draft(folder: Path, value: dict[str, Any]) -> Path:
    draft = folder / f".{FILE}.{secrets.token_hex(4)}"
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(json.dumps(value) + "\n")
        file.flush()
        os.fsync(file.fileno())
    return draft
