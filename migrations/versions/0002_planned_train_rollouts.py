"""planned rollouts of a training step

Revision: 0002, after 0001.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """To this revision."""
    op.add_column("run", sa.Column("train_rollouts_per_step", sa.Integer(), nullable=True))


def downgrade() -> None:
    """Back to the revision before."""
    # Not in batch mode: that makes the table anew, and dropping the old one would delete, by
    # their foreign keys, all rows of runs.
    op.drop_column("run", "train_rollouts_per_step")
