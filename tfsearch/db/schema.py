"""The tables. Portable to SQLite and PostgreSQL; revisions live in ``migrations``.

Structured values are canonical JSON in text columns, samples little-endian float64 in a blob:
both are equal on every backend, and nothing depends on a server's JSON type.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    text,
)

REVISIONS = ("0001", "0002")
"""Released schema revisions, oldest first; the last one is what this program writes."""

HEAD = REVISIONS[-1]
APPLICATION = "tfsearch"

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)
# SQLite gives row ids only to INTEGER primary keys; PostgreSQL needs 64 bits.
_Id = BigInteger().with_variant(Integer(), "sqlite")


def _id() -> Column[int]:
    return Column("id", _Id, primary_key=True)


def _text(name: str) -> Column[str]:
    return Column(name, Text, nullable=False)


def _reference(name: str, table: str, *, nullable: bool = False) -> Column[int]:
    return Column(name, _Id, ForeignKey(f"{table}.id"), nullable=nullable)


meta = Table("meta", metadata, Column("name", Text, primary_key=True), _text("value"))

workloads = Table(
    "workloads",
    metadata,
    _id(),
    Column("key", Text, nullable=False, unique=True),
    _text("op"),
    _text("dims"),
    _text("dtype"),
    _text("program"),
    _text("accuracy"),
    Column("reproducible", Integer, nullable=False),
    Column("alignment", Integer, nullable=False),
    _text("constant_inputs"),
    Index(None, "op"),
)

toolchains = Table(
    "toolchains",
    metadata,
    _id(),
    Column("digest", Text, nullable=False, unique=True),
    _text("name"),
    _text("version"),
    _text("programs"),
)

devices = Table(
    "devices",
    metadata,
    _id(),
    Column("key", Text, nullable=False, unique=True),
    _text("name"),
    _text("kind"),
    _text("model"),
    _text("features"),
    Column("units", Integer, nullable=False),
    Column("memory_bytes", BigInteger, nullable=False),
    _text("partitioning"),
    _text("driver"),
)

environments = Table(
    "environments",
    metadata,
    _id(),
    Column("key", Text, nullable=False, unique=True),
    _text("target"),
    _text("features"),
    _text("flags"),
    _reference("toolchain_id", "toolchains"),
    Index(None, "target", "flags"),
    comment="What every build of one compiler invocation style shares",
)

contexts = Table(
    "contexts",
    metadata,
    _id(),
    _reference("environment_id", "environments"),
    _reference("device_id", "devices"),
    _text("protocol"),
    Column("verifier", Integer, nullable=False),
    UniqueConstraint("device_id", "environment_id", "protocol", "verifier"),
    comment="What a lookup names beside its workload",
)

build_keys = Table(
    "build_keys",
    metadata,
    _id(),
    Column("key", Text, nullable=False, unique=True),
    _reference("environment_id", "environments"),
    _text("source"),
    _text("launch"),
    _text("macros"),
    _text("headers"),
)

builds = Table(
    "builds",
    metadata,
    _id(),
    _reference("build_key_id", "build_keys"),
    _text("artifact"),
    Column("seconds", Double, nullable=False),
    _text("resources"),
    _text("log"),
    Index(None, "build_key_id"),
)

sessions = Table(
    "sessions",
    metadata,
    _id(),
    Column("name", Text, nullable=False, unique=True),
    _text("key"),
    _reference("workload_id", "workloads"),
    _text("target"),
    _text("device"),
    _text("toolchain"),
    _text("flags"),
    _text("policy"),
    Column("seed", BigInteger, nullable=False),
    _text("space"),
    _text("status"),
    _text("owner"),
    _text("started_at"),
    _text("finished_at"),
    _text("details"),
    Index(None, "key"),
)

schedule_heads = Table(
    "schedule_heads",
    metadata,
    _id(),
    Column("key", Text, nullable=False, unique=True),
    Column("schema", Integer, nullable=False),
    _text("program"),
    _text("workload"),
    _text("target"),
    _text("recipe"),
    Column("recipe_version", Integer, nullable=False),
    comment="What the schedules of one space share: everything but the parameters",
)

schedules = Table(
    "schedules",
    metadata,
    _id(),
    Column("key", Text, nullable=False, unique=True),
    _reference("head_id", "schedule_heads"),
    _text("params"),
)

_EXACTLY_WHEN_OK = ("median_us", "ci_low_us", "ci_high_us", "sample_count", "censored")

trials = Table(
    "trials",
    metadata,
    _id(),
    _reference("session_id", "sessions"),
    Column("position", Integer, nullable=False),
    _reference("workload_id", "workloads"),
    _reference("schedule_id", "schedules"),
    _text("status"),
    _text("code"),
    _text("place"),
    _text("message"),
    Column("predicted_us", Double),
    _text("generator"),
    _reference("context_id", "contexts", nullable=True),
    _reference("build_key_id", "build_keys", nullable=True),
    _reference("build_id", "builds", nullable=True),
    Column("measurement_key", Text),
    Column("verified", Integer),
    Column("max_error", Double),
    Column("passes", Text),
    Column("verification_message", Text),
    Column("median_us", Double),
    Column("ci_low_us", Double),
    Column("ci_high_us", Double),
    Column("sample_count", Integer),
    Column("censored", Integer),
    _text("finished_at"),
    _text("content"),
    UniqueConstraint("session_id", "position"),
    *(
        CheckConstraint(f"(status = 'ok') = ({column} IS NOT NULL)", name=f"{column}_when_ok")
        for column in _EXACTLY_WHEN_OK
    ),
    CheckConstraint("median_us > 0", name="median_us_positive"),
    CheckConstraint(
        "status <> 'ok' OR (context_id IS NOT NULL AND build_id IS NOT NULL)", name="ok_is_keyed"
    ),
    Index(None, "workload_id", "status"),
    Index(None, "schedule_id", "workload_id"),
    Index(None, "status"),
)

_SERVABLE = "status = 'ok' AND verified = 1"
fastest_index = Index(
    "ix_trials_servable",
    trials.c.workload_id,
    trials.c.context_id,
    trials.c.median_us,
    # The condition has to be spelt with literals for a planner to match it.
    sqlite_where=text(_SERVABLE),
)


def prepare_for(dialect: str) -> None:
    """Complete what is spelt per dialect, before tables are created on it.

    Naming PostgreSQL's option in the definition would load its dialect for users of SQLite too.
    """
    if dialect == "postgresql":
        fastest_index.dialect_options["postgresql"]["where"] = text(_SERVABLE)


measurements = Table(
    "measurements",
    metadata,
    Column("trial_id", _Id, ForeignKey("trials.id"), primary_key=True, autoincrement=False),
    _text("protocol"),
    Column("samples", LargeBinary, nullable=False),
    _text("conditions"),
)

finals = Table(
    "finals",
    metadata,
    _id(),
    _reference("session_id", "sessions"),
    _reference("workload_id", "workloads"),
    _reference("context_id", "contexts"),
    _reference("winner_id", "trials"),
    _text("protocol"),
    _text("finished_at"),
    _text("conditions"),
    Index(None, "workload_id", "context_id", "id"),
    Index(None, "session_id"),
)

final_entries = Table(
    "final_entries",
    metadata,
    Column("final_id", _Id, ForeignKey("finals.id"), primary_key=True, autoincrement=False),
    Column("position", Integer, primary_key=True, autoincrement=False),
    _reference("trial_id", "trials"),
    Column("median_us", Double, nullable=False),
    Column("ci_low_us", Double, nullable=False),
    Column("ci_high_us", Double, nullable=False),
    Column("ratio", Double, nullable=False),
    Column("ratio_low", Double, nullable=False),
    Column("ratio_high", Double, nullable=False),
)

sources = Table(
    "sources",
    metadata,
    Column("schedule", Text, primary_key=True),
    Column("generator", Text, primary_key=True),
    _text("source"),
    _text("launch"),
    comment="Fast path from a schedule to what its generator emits",
)

launches = Table("launches", metadata, Column("digest", Text, primary_key=True), _text("spec"))

proofs = Table(
    "proofs",
    metadata,
    Column("shape", Text, primary_key=True),
    Column("prover", Text, primary_key=True),
    Column("ok", Integer, nullable=False),
    _text("refusals"),
)

leases = Table(
    "leases",
    metadata,
    Column("device", Text, primary_key=True),
    _text("holder"),
    Column("term", BigInteger, nullable=False),
    Column("beat", BigInteger, nullable=False),
    Column("wishes", BigInteger, nullable=False),
    comment="Which session may measure on a device now; counters only, no times",
)
