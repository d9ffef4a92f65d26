"""Leases of devices."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "leases",
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("term", sa.BigInteger(), nullable=False),
        sa.Column("beat", sa.BigInteger(), nullable=False),
        sa.Column("wishes", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("device", name=op.f("pk_leases")),
        comment="Which session may measure on a device now; counters only, no times",
    )
