"""Alembic's environment: migrates over the connection that shared.database.schema passes."""

from alembic import context

from shared.database.schema import Base

context.configure(connection=context.config.attributes["connection"], target_metadata=Base.metadata)
with context.begin_transaction():
    context.run_migrations()
