"""Alembic's entry: migrates on the connection, and within the transaction, that migrate.py opened."""

from __future__ import annotations

from alembic import context

from timesyncd.store.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata, transactional_ddl=True)
with context.begin_transaction():
    context.run_migrations()
