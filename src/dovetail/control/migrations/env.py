"""Run by alembic: the connection is handed in by `dovetail.control.store`."""

from __future__ import annotations

from alembic import context

from dovetail.control.tables import metadata

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=metadata,
    render_as_batch=connection.dialect.name == "sqlite",
    transaction_per_migration=False,
)
with context.begin_transaction():
    context.run_migrations()
