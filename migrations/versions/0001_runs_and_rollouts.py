"""runs and rollouts

Revision: 0001, the first.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """To this revision."""
    op.create_table(
        "run",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("preset", sa.String(), nullable=False),
        sa.Column("tags", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("domain", sa.String(), nullable=False),
        sa.Column("engine", sa.String(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("phase", sa.String(), nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("attempts_allowed", sa.Integer(), nullable=False),
        sa.Column("worker_id", sa.String(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("progress_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("total_steps", sa.Integer(), nullable=True),
        sa.Column("validation_rollouts", sa.Integer(), nullable=True),
        sa.Column("train_tasks", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("validation_tasks", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("config", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("config_overrides", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("error", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("stop_reason", sa.String(), nullable=True),
        sa.Column("retry_of", sa.String(), nullable=True),
        sa.Column("resume_from", sa.String(), nullable=True),
        sa.Column("outcomes", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("user_prompt_tokens", sa.BigInteger(), nullable=False),
        sa.Column("user_completion_tokens", sa.BigInteger(), nullable=False),
        sa.Column("non_finite_metrics", sa.Integer(), nullable=False),
        sa.Column("last_event", sa.Integer(), nullable=False),
        sa.Column("last_line", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_run")),
    )
    with op.batch_alter_table("run", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_run_domain"), ["domain"], unique=False)
        batch_op.create_index(batch_op.f("ix_run_preset"), ["preset"], unique=False)
        batch_op.create_index(
            batch_op.f("ix_run_status_engine"), ["status", "engine"], unique=False
        )

    op.create_table(
        "worker",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("engines", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("cpus", sa.Integer(), nullable=False),
        sa.Column("memory_bytes", sa.BigInteger(), nullable=False),
        sa.Column("gpus", sa.Integer(), nullable=False),
        sa.Column("versions", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("registered_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_worker")),
    )
    op.create_table(
        "attempt",
        sa.Column("run_id", sa.String(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("worker_id", sa.String(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("lease_token", sa.String(), nullable=False),
        sa.Column("lease_expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("claimed_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("error", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("stop_reason", sa.String(), nullable=True),
        sa.Column("resume_from", sa.String(), nullable=True),
        sa.Column("first_step", sa.Integer(), nullable=True),
        sa.Column("first_step_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("last_step_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["run_id"], ["run.id"], name=op.f("fk_attempt_run_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_id", "number", name=op.f("pk_attempt")),
    )
    with op.batch_alter_table("attempt", schema=None) as batch_op:
        batch_op.create_index(
            batch_op.f("ix_attempt_status_lease_expires_at"),
            ["status", "lease_expires_at"],
            unique=False,
        )

    op.create_table(
        "baseline",
        sa.Column("run_id", sa.String(), nullable=False),
        sa.Column("task_id", sa.String(), nullable=False),
        sa.Column("domain", sa.String(), nullable=False),
        sa.Column("do_nothing", sa.Float(), nullable=True),
        sa.Column("reference", sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(
            ["run_id"], ["run.id"], name=op.f("fk_baseline_run_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_id", "task_id", name=op.f("pk_baseline")),
    )
    with op.batch_alter_table("baseline", schema=None) as batch_op:
        batch_op.create_index(
            batch_op.f("ix_baseline_domain_task_id"), ["domain", "task_id"], unique=False
        )

    op.create_table(
        "checkpoint",
        sa.Column("run_id", sa.String(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("path", sa.String(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("validation_reward", sa.Float(), nullable=True),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id"], ["run.id"], name=op.f("fk_checkpoint_run_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_id", "step", name=op.f("pk_checkpoint")),
    )
    op.create_table(
        "curve_point",
        sa.Column("run_id", sa.String(), nullable=False),
        sa.Column("mode", sa.String(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("values", sa.JSON(none_as_null=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id"], ["run.id"], name=op.f("fk_curve_point_run_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_id", "mode", "step", name=op.f("pk_curve_point")),
    )
    op.create_table(
        "event",
        sa.Column("run_id", sa.String(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("type", sa.String(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("data", sa.JSON(none_as_null=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id"], ["run.id"], name=op.f("fk_event_run_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_id", "seq", name=op.f("pk_event")),
    )
    op.create_table(
        "idempotency_key",
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("run_id", sa.String(), nullable=False),
        sa.Column("request_hash", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id"], ["run.id"], name=op.f("fk_idempotency_key_run_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_idempotency_key")),
    )
    with op.batch_alter_table("idempotency_key", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_idempotency_key_run_id"), ["run_id"], unique=False)

    op.create_table(
        "log_line",
        sa.Column("run_id", sa.String(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("text", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id"], ["run.id"], name=op.f("fk_log_line_run_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_id", "seq", name=op.f("pk_log_line")),
    )
    op.create_table(
        "metric_point",
        sa.Column("run_id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("value", sa.Float(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id"], ["run.id"], name=op.f("fk_metric_point_run_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_id", "name", "step", name=op.f("pk_metric_point")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "report_id",
        sa.Column("run_id", sa.String(), nullable=False),
        sa.Column("id", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id"], ["run.id"], name=op.f("fk_report_id_run_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_id", "id", name=op.f("pk_report_id")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "rollout",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("run_id", sa.String(), nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=True),
        sa.Column("step", sa.Integer(), nullable=True),
        sa.Column("mode", sa.String(), nullable=False),
        sa.Column("task_id", sa.String(), nullable=False),
        sa.Column("outcome", sa.String(), nullable=False),
        sa.Column("reward", sa.Float(), nullable=True),
        sa.Column("shaped_reward", sa.Float(), nullable=True),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("summary", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("messages", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id"], ["run.id"], name=op.f("fk_rollout_run_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_rollout")),
    )
    with op.batch_alter_table("rollout", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_rollout_run_id_id"), ["run_id", "id"], unique=False)
        batch_op.create_index(
            batch_op.f("ix_rollout_run_id_mode_step"), ["run_id", "mode", "step"], unique=False
        )


def downgrade() -> None:
    """Back to the one before."""
    with op.batch_alter_table("rollout", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_rollout_run_id_mode_step"))
        batch_op.drop_index(batch_op.f("ix_rollout_run_id_id"))

    op.drop_table("rollout")
    op.drop_table("report_id")
    op.drop_table("metric_point")
    op.drop_table("log_line")
    with op.batch_alter_table("idempotency_key", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_idempotency_key_run_id"))

    op.drop_table("idempotency_key")
    op.drop_table("event")
    op.drop_table("curve_point")
    op.drop_table("checkpoint")
    with op.batch_alter_table("baseline", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_baseline_domain_task_id"))

    op.drop_table("baseline")
    with op.batch_alter_table("attempt", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_attempt_status_lease_expires_at"))

    op.drop_table("attempt")
    op.drop_table("worker")
    with op.batch_alter_table("run", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_run_status_engine"))
        batch_op.drop_index(batch_op.f("ix_run_preset"))
        batch_op.drop_index(batch_op.f("ix_run_domain"))

    op.drop_table("run")
