"""The first schema."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    _create_devices()
    _create_launches()
    _create_meta()
    _create_proofs()
    _create_schedule_heads()
    _create_sources()
    _create_toolchains()
    _create_workloads()
    _create_environments()
    _create_schedules()
    _create_sessions()
    _create_build_keys()
    _create_contexts()
    _create_builds()
    _create_trials()
    _create_finals()
    _create_measurements()
    _create_final_entries()
    meta = sa.table("meta", sa.column("name"), sa.column("value"))
    op.bulk_insert(meta, [{"name": "application", "value": "tfsearch"}])
    if op.get_bind().dialect.name == "sqlite":
        op.execute("PRAGMA application_id=1952871282")  # "tfsr"


def _create_devices() -> None:
    op.create_table(
        "devices",
        sa.Column("id", _ID, nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("features", sa.Text(), nullable=False),
        sa.Column("units", sa.Integer(), nullable=False),
        sa.Column("memory_bytes", sa.BigInteger(), nullable=False),
        sa.Column("partitioning", sa.Text(), nullable=False),
        sa.Column("driver", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_devices"),
        sa.UniqueConstraint("key", name="uq_devices_key"),
    )


def _create_launches() -> None:
    op.create_table(
        "launches",
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name="pk_launches"),
    )


def _create_meta() -> None:
    op.create_table(
        "meta",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_meta"),
    )


def _create_proofs() -> None:
    op.create_table(
        "proofs",
        sa.Column("shape", sa.Text(), nullable=False),
        sa.Column("prover", sa.Text(), nullable=False),
        sa.Column("ok", sa.Integer(), nullable=False),
        sa.Column("refusals", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("shape", "prover", name="pk_proofs"),
    )


def _create_schedule_heads() -> None:
    op.create_table(
        "schedule_heads",
        sa.Column("id", _ID, nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("schema", sa.Integer(), nullable=False),
        sa.Column("program", sa.Text(), nullable=False),
        sa.Column("workload", sa.Text(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("recipe", sa.Text(), nullable=False),
        sa.Column("recipe_version", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_schedule_heads"),
        sa.UniqueConstraint("key", name="uq_schedule_heads_key"),
        comment="What the schedules of one space share: everything but the parameters",
    )


def _create_sources() -> None:
    op.create_table(
        "sources",
        sa.Column("schedule", sa.Text(), nullable=False),
        sa.Column("generator", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("launch", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("schedule", "generator", name="pk_sources"),
        comment="Fast path from a schedule to what its generator emits",
    )


def _create_toolchains() -> None:
    op.create_table(
        "toolchains",
        sa.Column("id", _ID, nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("programs", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_toolchains"),
        sa.UniqueConstraint("digest", name="uq_toolchains_digest"),
    )


def _create_workloads() -> None:
    op.create_table(
        "workloads",
        sa.Column("id", _ID, nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("op", sa.Text(), nullable=False),
        sa.Column("dims", sa.Text(), nullable=False),
        sa.Column("dtype", sa.Text(), nullable=False),
        sa.Column("program", sa.Text(), nullable=False),
        sa.Column("accuracy", sa.Text(), nullable=False),
        sa.Column("reproducible", sa.Integer(), nullable=False),
        sa.Column("alignment", sa.Integer(), nullable=False),
        sa.Column("constant_inputs", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_workloads"),
        sa.UniqueConstraint("key", name="uq_workloads_key"),
    )
    op.create_index("ix_workloads_op", "workloads", ["op"], unique=False)


def _create_environments() -> None:
    op.create_table(
        "environments",
        sa.Column("id", _ID, nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("features", sa.Text(), nullable=False),
        sa.Column("flags", sa.Text(), nullable=False),
        sa.Column("toolchain_id", _ID, nullable=False),
        sa.ForeignKeyConstraint(
            ["toolchain_id"], ["toolchains.id"], name="fk_environments_toolchain_id"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_environments"),
        sa.UniqueConstraint("key", name="uq_environments_key"),
        comment="What every build of one compiler invocation style shares",
    )
    op.create_index(
        "ix_environments_target_flags", "environments", ["target", "flags"], unique=False
    )


def _create_schedules() -> None:
    op.create_table(
        "schedules",
        sa.Column("id", _ID, nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("head_id", _ID, nullable=False),
        sa.Column("params", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["head_id"], ["schedule_heads.id"], name="fk_schedules_head_id"),
        sa.PrimaryKeyConstraint("id", name="pk_schedules"),
        sa.UniqueConstraint("key", name="uq_schedules_key"),
    )


def _create_sessions() -> None:
    op.create_table(
        "sessions",
        sa.Column("id", _ID, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("workload_id", _ID, nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("toolchain", sa.Text(), nullable=False),
        sa.Column("flags", sa.Text(), nullable=False),
        sa.Column("policy", sa.Text(), nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("space", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("started_at", sa.Text(), nullable=False),
        sa.Column("finished_at", sa.Text(), nullable=False),
        sa.Column("details", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["workload_id"], ["workloads.id"], name="fk_sessions_workload_id"),
        sa.PrimaryKeyConstraint("id", name="pk_sessions"),
        sa.UniqueConstraint("name", name="uq_sessions_name"),
    )
    op.create_index("ix_sessions_key", "sessions", ["key"], unique=False)


def _create_build_keys() -> None:
    op.create_table(
        "build_keys",
        sa.Column("id", _ID, nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("environment_id", _ID, nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("launch", sa.Text(), nullable=False),
        sa.Column("macros", sa.Text(), nullable=False),
        sa.Column("headers", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["environment_id"], ["environments.id"], name="fk_build_keys_environment_id"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_build_keys"),
        sa.UniqueConstraint("key", name="uq_build_keys_key"),
    )


def _create_contexts() -> None:
    op.create_table(
        "contexts",
        sa.Column("id", _ID, nullable=False),
        sa.Column("environment_id", _ID, nullable=False),
        sa.Column("device_id", _ID, nullable=False),
        sa.Column("protocol", sa.Text(), nullable=False),
        sa.Column("verifier", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["device_id"], ["devices.id"], name="fk_contexts_device_id"),
        sa.ForeignKeyConstraint(
            ["environment_id"], ["environments.id"], name="fk_contexts_environment_id"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_contexts"),
        sa.UniqueConstraint(
            "device_id",
            "environment_id",
            "protocol",
            "verifier",
            name="uq_contexts_device_id_environment_id_protocol_verifier",
        ),
        comment="What a lookup names beside its workload",
    )


def _create_builds() -> None:
    op.create_table(
        "builds",
        sa.Column("id", _ID, nullable=False),
        sa.Column("build_key_id", _ID, nullable=False),
        sa.Column("artifact", sa.Text(), nullable=False),
        sa.Column("seconds", sa.Double, nullable=False),
        sa.Column("resources", sa.Text(), nullable=False),
        sa.Column("log", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["build_key_id"], ["build_keys.id"], name="fk_builds_build_key_id"),
        sa.PrimaryKeyConstraint("id", name="pk_builds"),
    )
    op.create_index("ix_builds_build_key_id", "builds", ["build_key_id"], unique=False)


def _create_trials() -> None:
    op.create_table(
        "trials",
        sa.Column("id", _ID, nullable=False),
        sa.Column("session_id", _ID, nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("workload_id", _ID, nullable=False),
        sa.Column("schedule_id", _ID, nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("code", sa.Text(), nullable=False),
        sa.Column("place", sa.Text(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("predicted_us", sa.Double, nullable=True),
        sa.Column("generator", sa.Text(), nullable=False),
        sa.Column("context_id", _ID, nullable=True),
        sa.Column("build_key_id", _ID, nullable=True),
        sa.Column("build_id", _ID, nullable=True),
        sa.Column("measurement_key", sa.Text(), nullable=True),
        sa.Column("verified", sa.Integer(), nullable=True),
        sa.Column("max_error", sa.Double, nullable=True),
        sa.Column("passes", sa.Text(), nullable=True),
        sa.Column("verification_message", sa.Text(), nullable=True),
        sa.Column("median_us", sa.Double, nullable=True),
        sa.Column("ci_low_us", sa.Double, nullable=True),
        sa.Column("ci_high_us", sa.Double, nullable=True),
        sa.Column("sample_count", sa.Integer(), nullable=True),
        sa.Column("censored", sa.Integer(), nullable=True),
        sa.Column("finished_at", sa.Text(), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.CheckConstraint(
            "(status = 'ok') = (censored IS NOT NULL)", name=op.f("ck_trials_censored_when_ok")
        ),
        sa.CheckConstraint(
            "(status = 'ok') = (ci_high_us IS NOT NULL)", name=op.f("ck_trials_ci_high_us_when_ok")
        ),
        sa.CheckConstraint(
            "(status = 'ok') = (ci_low_us IS NOT NULL)", name=op.f("ck_trials_ci_low_us_when_ok")
        ),
        sa.CheckConstraint(
            "(status = 'ok') = (median_us IS NOT NULL)", name=op.f("ck_trials_median_us_when_ok")
        ),
        sa.CheckConstraint(
            "(status = 'ok') = (sample_count IS NOT NULL)",
            name=op.f("ck_trials_sample_count_when_ok"),
        ),
        sa.CheckConstraint(
            "status <> 'ok' OR (context_id IS NOT NULL AND build_id IS NOT NULL)",
            name=op.f("ck_trials_ok_is_keyed"),
        ),
        sa.CheckConstraint("median_us > 0", name=op.f("ck_trials_median_us_positive")),
        sa.ForeignKeyConstraint(["build_id"], ["builds.id"], name="fk_trials_build_id"),
        sa.ForeignKeyConstraint(["build_key_id"], ["build_keys.id"], name="fk_trials_build_key_id"),
        sa.ForeignKeyConstraint(["context_id"], ["contexts.id"], name="fk_trials_context_id"),
        sa.ForeignKeyConstraint(["schedule_id"], ["schedules.id"], name="fk_trials_schedule_id"),
        sa.ForeignKeyConstraint(["session_id"], ["sessions.id"], name="fk_trials_session_id"),
        sa.ForeignKeyConstraint(["workload_id"], ["workloads.id"], name="fk_trials_workload_id"),
        sa.PrimaryKeyConstraint("id", name="pk_trials"),
        sa.UniqueConstraint("session_id", "position", name="uq_trials_session_id_position"),
    )
    op.create_index(
        "ix_trials_schedule_id_workload_id", "trials", ["schedule_id", "workload_id"], unique=False
    )
    op.create_index(
        "ix_trials_servable",
        "trials",
        ["workload_id", "context_id", "median_us"],
        unique=False,
        sqlite_where=sa.text("status = 'ok' AND verified = 1"),
        postgresql_where=sa.text("status = 'ok' AND verified = 1"),
    )
    op.create_index("ix_trials_status", "trials", ["status"], unique=False)
    op.create_index(
        "ix_trials_workload_id_status", "trials", ["workload_id", "status"], unique=False
    )


def _create_finals() -> None:
    op.create_table(
        "finals",
        sa.Column("id", _ID, nullable=False),
        sa.Column("session_id", _ID, nullable=False),
        sa.Column("workload_id", _ID, nullable=False),
        sa.Column("context_id", _ID, nullable=False),
        sa.Column("winner_id", _ID, nullable=False),
        sa.Column("protocol", sa.Text(), nullable=False),
        sa.Column("finished_at", sa.Text(), nullable=False),
        sa.Column("conditions", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["context_id"], ["contexts.id"], name="fk_finals_context_id"),
        sa.ForeignKeyConstraint(["session_id"], ["sessions.id"], name="fk_finals_session_id"),
        sa.ForeignKeyConstraint(["winner_id"], ["trials.id"], name="fk_finals_winner_id"),
        sa.ForeignKeyConstraint(["workload_id"], ["workloads.id"], name="fk_finals_workload_id"),
        sa.PrimaryKeyConstraint("id", name="pk_finals"),
    )
    op.create_index("ix_finals_session_id", "finals", ["session_id"], unique=False)
    op.create_index(
        "ix_finals_workload_id_context_id_id",
        "finals",
        ["workload_id", "context_id", "id"],
        unique=False,
    )


def _create_measurements() -> None:
    op.create_table(
        "measurements",
        sa.Column("trial_id", _ID, autoincrement=False, nullable=False),
        sa.Column("protocol", sa.Text(), nullable=False),
        sa.Column("samples", sa.LargeBinary(), nullable=False),
        sa.Column("conditions", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["trial_id"], ["trials.id"], name="fk_measurements_trial_id"),
        sa.PrimaryKeyConstraint("trial_id", name="pk_measurements"),
    )


def _create_final_entries() -> None:
    op.create_table(
        "final_entries",
        sa.Column("final_id", _ID, autoincrement=False, nullable=False),
        sa.Column("position", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("trial_id", _ID, nullable=False),
        sa.Column("median_us", sa.Double, nullable=False),
        sa.Column("ci_low_us", sa.Double, nullable=False),
        sa.Column("ci_high_us", sa.Double, nullable=False),
        sa.Column("ratio", sa.Double, nullable=False),
        sa.Column("ratio_low", sa.Double, nullable=False),
        sa.Column("ratio_high", sa.Double, nullable=False),
        sa.ForeignKeyConstraint(["final_id"], ["finals.id"], name="fk_final_entries_final_id"),
        sa.ForeignKeyConstraint(["trial_id"], ["trials.id"], name="fk_final_entries_trial_id"),
        sa.PrimaryKeyConstraint("final_id", "position", name="pk_final_entries"),
    )
