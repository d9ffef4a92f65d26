PRAGMA application_id=1952871282;
BEGIN TRANSACTION;
CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL, CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num));
INSERT INTO "alembic_version" VALUES('0002');
CREATE TABLE build_keys (
	id INTEGER NOT NULL, 
	"key" TEXT NOT NULL, 
	environment_id INTEGER NOT NULL, 
	source TEXT NOT NULL, 
	launch TEXT NOT NULL, 
	macros TEXT NOT NULL, 
	headers TEXT NOT NULL, 
	CONSTRAINT pk_build_keys PRIMARY KEY (id), 
	CONSTRAINT uq_build_keys_key UNIQUE ("key"), 
	CONSTRAINT fk_build_keys_environment_id FOREIGN KEY(environment_id) REFERENCES environments (id)
);
INSERT INTO "build_keys" VALUES(1,'526788812abd19112a9ee11b2883463d6f567c7281c86eb969a472dd4000cf4f',1,'source-0','launch','[]','headers');
CREATE TABLE builds (
	id INTEGER NOT NULL, 
	build_key_id INTEGER NOT NULL, 
	artifact TEXT NOT NULL, 
	seconds DOUBLE NOT NULL, 
	resources TEXT NOT NULL, 
	log TEXT NOT NULL, 
	CONSTRAINT pk_builds PRIMARY KEY (id), 
	CONSTRAINT fk_builds_build_key_id FOREIGN KEY(build_key_id) REFERENCES build_keys (id)
);
INSERT INTO "builds" VALUES(1,1,'cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc',0.5,'{"registers":16}','a warning');
CREATE TABLE contexts (
	id INTEGER NOT NULL, 
	environment_id INTEGER NOT NULL, 
	device_id INTEGER NOT NULL, 
	protocol TEXT NOT NULL, 
	verifier INTEGER NOT NULL, 
	CONSTRAINT pk_contexts PRIMARY KEY (id), 
	CONSTRAINT uq_contexts_device_id_environment_id_protocol_verifier UNIQUE (device_id, environment_id, protocol, verifier), 
	CONSTRAINT fk_contexts_environment_id FOREIGN KEY(environment_id) REFERENCES environments (id), 
	CONSTRAINT fk_contexts_device_id FOREIGN KEY(device_id) REFERENCES devices (id)
);
INSERT INTO "contexts" VALUES(1,1,1,'cold/1',1);
CREATE TABLE devices (
	id INTEGER NOT NULL, 
	"key" TEXT NOT NULL, 
	name TEXT NOT NULL, 
	kind TEXT NOT NULL, 
	model TEXT NOT NULL, 
	features TEXT NOT NULL, 
	units INTEGER NOT NULL, 
	memory_bytes BIGINT NOT NULL, 
	partitioning TEXT NOT NULL, 
	driver TEXT NOT NULL, 
	CONSTRAINT pk_devices PRIMARY KEY (id), 
	CONSTRAINT uq_devices_key UNIQUE ("key")
);
INSERT INTO "devices" VALUES(1,'e7f9c2906394c6defbb9e9557e01b2313a3ffaa3afdaae55c02581357798b9db','Xeon','cpu','6/207/2','["avx2","fma"]',2,8589934592,'','6.1');
CREATE TABLE environments (
	id INTEGER NOT NULL, 
	"key" TEXT NOT NULL, 
	target TEXT NOT NULL, 
	features TEXT NOT NULL, 
	flags TEXT NOT NULL, 
	toolchain_id INTEGER NOT NULL, 
	CONSTRAINT pk_environments PRIMARY KEY (id), 
	CONSTRAINT uq_environments_key UNIQUE ("key"), 
	CONSTRAINT fk_environments_toolchain_id FOREIGN KEY(toolchain_id) REFERENCES toolchains (id)
);
INSERT INTO "environments" VALUES(1,'4dcf44847d35f74ad0232638f79ed64d20b28ba0040adaec150774fafd36d57f','x86','["avx2"]','["-O3","-march=native"]',1);
CREATE TABLE final_entries (
	final_id INTEGER NOT NULL, 
	position INTEGER NOT NULL, 
	trial_id INTEGER NOT NULL, 
	median_us DOUBLE NOT NULL, 
	ci_low_us DOUBLE NOT NULL, 
	ci_high_us DOUBLE NOT NULL, 
	ratio DOUBLE NOT NULL, 
	ratio_low DOUBLE NOT NULL, 
	ratio_high DOUBLE NOT NULL, 
	CONSTRAINT pk_final_entries PRIMARY KEY (final_id, position), 
	CONSTRAINT fk_final_entries_final_id FOREIGN KEY(final_id) REFERENCES finals (id), 
	CONSTRAINT fk_final_entries_trial_id FOREIGN KEY(trial_id) REFERENCES trials (id)
);
INSERT INTO "final_entries" VALUES(1,0,1,10.0,9.5,10.5,1.0,1.0,1.2);
CREATE TABLE finals (
	id INTEGER NOT NULL, 
	session_id INTEGER NOT NULL, 
	workload_id INTEGER NOT NULL, 
	context_id INTEGER NOT NULL, 
	winner_id INTEGER NOT NULL, 
	protocol TEXT NOT NULL, 
	finished_at TEXT NOT NULL, 
	conditions TEXT NOT NULL, 
	CONSTRAINT pk_finals PRIMARY KEY (id), 
	CONSTRAINT fk_finals_session_id FOREIGN KEY(session_id) REFERENCES sessions (id), 
	CONSTRAINT fk_finals_workload_id FOREIGN KEY(workload_id) REFERENCES workloads (id), 
	CONSTRAINT fk_finals_context_id FOREIGN KEY(context_id) REFERENCES contexts (id), 
	CONSTRAINT fk_finals_winner_id FOREIGN KEY(winner_id) REFERENCES trials (id)
);
INSERT INTO "finals" VALUES(1,1,1,1,1,'cold/1','2030-01-01','{"drift":0.01}');
CREATE TABLE launches (
	digest TEXT NOT NULL, 
	spec TEXT NOT NULL, 
	CONSTRAINT pk_launches PRIMARY KEY (digest)
);
CREATE TABLE leases (
	device TEXT NOT NULL, 
	holder TEXT NOT NULL, 
	term BIGINT NOT NULL, 
	beat BIGINT NOT NULL, 
	wishes BIGINT NOT NULL, 
	CONSTRAINT pk_leases PRIMARY KEY (device)
);
CREATE TABLE measurements (
	trial_id INTEGER NOT NULL, 
	protocol TEXT NOT NULL, 
	samples BLOB NOT NULL, 
	conditions TEXT NOT NULL, 
	CONSTRAINT pk_measurements PRIMARY KEY (trial_id), 
	CONSTRAINT fk_measurements_trial_id FOREIGN KEY(trial_id) REFERENCES trials (id)
);
INSERT INTO "measurements" VALUES(1,'cold/1',X'000000000000244033333333333324406666666666662440555555555555D53F','{"probe":1.5}');
CREATE TABLE meta (
	name TEXT NOT NULL, 
	value TEXT NOT NULL, 
	CONSTRAINT pk_meta PRIMARY KEY (name)
);
INSERT INTO "meta" VALUES('application','tfsearch');
CREATE TABLE proofs (
	shape TEXT NOT NULL, 
	prover TEXT NOT NULL, 
	ok INTEGER NOT NULL, 
	refusals TEXT NOT NULL, 
	CONSTRAINT pk_proofs PRIMARY KEY (shape, prover)
);
CREATE TABLE schedule_heads (
	id INTEGER NOT NULL, 
	"key" TEXT NOT NULL, 
	schema INTEGER NOT NULL, 
	program TEXT NOT NULL, 
	workload TEXT NOT NULL, 
	target TEXT NOT NULL, 
	recipe TEXT NOT NULL, 
	recipe_version INTEGER NOT NULL, 
	CONSTRAINT pk_schedule_heads PRIMARY KEY (id), 
	CONSTRAINT uq_schedule_heads_key UNIQUE ("key")
);
INSERT INTO "schedule_heads" VALUES(1,'f375eb525b059e1390a66fcf0fbad2f89273a7705a5f78bfb098d0da306c5f52',1,'program gemm m=512','632b7f56f71029713297cc2cb05ac844ad49d3e571b5219502acbcd610f75bee','x86','contraction',1);
CREATE TABLE schedules (
	id INTEGER NOT NULL, 
	"key" TEXT NOT NULL, 
	head_id INTEGER NOT NULL, 
	params TEXT NOT NULL, 
	CONSTRAINT pk_schedules PRIMARY KEY (id), 
	CONSTRAINT uq_schedules_key UNIQUE ("key"), 
	CONSTRAINT fk_schedules_head_id FOREIGN KEY(head_id) REFERENCES schedule_heads (id)
);
INSERT INTO "schedules" VALUES(1,'5e8ca44fc8ae3a265dc0ce2cd5940802f1d91b7bfa9a583fa1944bb9dd320a83',1,'{"order":"mnk","pack":true,"tile":0}');
INSERT INTO "schedules" VALUES(2,'b6d3382b97b80ade00893599e96ea836277bd6d8ed845c20928e7e8c43af75fd',1,'{"order":"mnk","pack":true,"tile":1}');
CREATE TABLE sessions (
	id INTEGER NOT NULL, 
	name TEXT NOT NULL, 
	"key" TEXT NOT NULL, 
	workload_id INTEGER NOT NULL, 
	target TEXT NOT NULL, 
	device TEXT NOT NULL, 
	toolchain TEXT NOT NULL, 
	flags TEXT NOT NULL, 
	policy TEXT NOT NULL, 
	seed BIGINT NOT NULL, 
	space TEXT NOT NULL, 
	status TEXT NOT NULL, 
	owner TEXT NOT NULL, 
	started_at TEXT NOT NULL, 
	finished_at TEXT NOT NULL, 
	details TEXT NOT NULL, 
	CONSTRAINT pk_sessions PRIMARY KEY (id), 
	CONSTRAINT uq_sessions_name UNIQUE (name), 
	CONSTRAINT fk_sessions_workload_id FOREIGN KEY(workload_id) REFERENCES workloads (id)
);
INSERT INTO "sessions" VALUES(1,'s1','c650dd0b59cc75ffe227027bd3c434970732e49d6360dab98b69708353f1190e',1,'x86','e7f9c2906394c6defbb9e9557e01b2313a3ffaa3afdaae55c02581357798b9db','ebc418d12b86d7fecdc808a118420593858a0d1cca897a2aa76bf7d69e8f20bd','["-O3"]','ranked',7,'ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff','running','host:1','','','{"trials":16}');
CREATE TABLE sources (
	schedule TEXT NOT NULL, 
	generator TEXT NOT NULL, 
	source TEXT NOT NULL, 
	launch TEXT NOT NULL, 
	CONSTRAINT pk_sources PRIMARY KEY (schedule, generator)
);
CREATE TABLE toolchains (
	id INTEGER NOT NULL, 
	digest TEXT NOT NULL, 
	name TEXT NOT NULL, 
	version TEXT NOT NULL, 
	programs TEXT NOT NULL, 
	CONSTRAINT pk_toolchains PRIMARY KEY (id), 
	CONSTRAINT uq_toolchains_digest UNIQUE (digest)
);
INSERT INTO "toolchains" VALUES(1,'ebc418d12b86d7fecdc808a118420593858a0d1cca897a2aa76bf7d69e8f20bd','gcc','gcc 12.2','{"cc1":"bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb","driver":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}');
CREATE TABLE trials (
	id INTEGER NOT NULL, 
	session_id INTEGER NOT NULL, 
	position INTEGER NOT NULL, 
	workload_id INTEGER NOT NULL, 
	schedule_id INTEGER NOT NULL, 
	status TEXT NOT NULL, 
	code TEXT NOT NULL, 
	place TEXT NOT NULL, 
	message TEXT NOT NULL, 
	predicted_us DOUBLE, 
	generator TEXT NOT NULL, 
	context_id INTEGER, 
	build_key_id INTEGER, 
	build_id INTEGER, 
	measurement_key TEXT, 
	verified INTEGER, 
	max_error DOUBLE, 
	passes TEXT, 
	verification_message TEXT, 
	median_us DOUBLE, 
	ci_low_us DOUBLE, 
	ci_high_us DOUBLE, 
	sample_count INTEGER, 
	censored INTEGER, 
	finished_at TEXT NOT NULL, 
	content TEXT NOT NULL, 
	CONSTRAINT pk_trials PRIMARY KEY (id), 
	CONSTRAINT uq_trials_session_id_position UNIQUE (session_id, position), 
	CONSTRAINT ck_trials_median_us_when_ok CHECK ((status = 'ok') = (median_us IS NOT NULL)), 
	CONSTRAINT ck_trials_ci_low_us_when_ok CHECK ((status = 'ok') = (ci_low_us IS NOT NULL)), 
	CONSTRAINT ck_trials_ci_high_us_when_ok CHECK ((status = 'ok') = (ci_high_us IS NOT NULL)), 
	CONSTRAINT ck_trials_sample_count_when_ok CHECK ((status = 'ok') = (sample_count IS NOT NULL)), 
	CONSTRAINT ck_trials_censored_when_ok CHECK ((status = 'ok') = (censored IS NOT NULL)), 
	CONSTRAINT ck_trials_median_us_positive CHECK (median_us > 0), 
	CONSTRAINT ck_trials_ok_is_keyed CHECK (status <> 'ok' OR (context_id IS NOT NULL AND build_id IS NOT NULL)), 
	CONSTRAINT fk_trials_session_id FOREIGN KEY(session_id) REFERENCES sessions (id), 
	CONSTRAINT fk_trials_workload_id FOREIGN KEY(workload_id) REFERENCES workloads (id), 
	CONSTRAINT fk_trials_schedule_id FOREIGN KEY(schedule_id) REFERENCES schedules (id), 
	CONSTRAINT fk_trials_context_id FOREIGN KEY(context_id) REFERENCES contexts (id), 
	CONSTRAINT fk_trials_build_key_id FOREIGN KEY(build_key_id) REFERENCES build_keys (id), 
	CONSTRAINT fk_trials_build_id FOREIGN KEY(build_id) REFERENCES builds (id)
);
INSERT INTO "trials" VALUES(1,1,0,1,1,'ok','','','',5.0,'generator-1',1,1,1,'97addcc73aea274d9a167ee7eed4dd3315ebe4327d39b2424db3f02905e6c653',1,0.25,'{"exact":0.0,"normal":0.25}','',10.0,9.5,10.5,4,0,'2030-01-01T00:00:00Z','8acded3146ddd56fb5c6f414edd709d2d7051c10cb79747cfb4b6b6e92fa0d7e');
INSERT INTO "trials" VALUES(2,1,1,1,2,'wrong','build.failed','kernel.c:3','unknown type',NULL,'',NULL,NULL,NULL,NULL,0,NULL,'{"exact":Infinity}','3 wrong',NULL,NULL,NULL,NULL,NULL,'','b85d7b4c133e872ac86ce254c6d4bee0f63fcc29ee6b26d1fe56b7bea77281d8');
CREATE TABLE workloads (
	id INTEGER NOT NULL, 
	"key" TEXT NOT NULL, 
	op TEXT NOT NULL, 
	dims TEXT NOT NULL, 
	dtype TEXT NOT NULL, 
	program TEXT NOT NULL, 
	accuracy TEXT NOT NULL, 
	reproducible INTEGER NOT NULL, 
	alignment INTEGER NOT NULL, 
	constant_inputs TEXT NOT NULL, 
	CONSTRAINT pk_workloads PRIMARY KEY (id), 
	CONSTRAINT uq_workloads_key UNIQUE ("key")
);
INSERT INTO "workloads" VALUES(1,'632b7f56f71029713297cc2cb05ac844ad49d3e571b5219502acbcd610f75bee','gemm','{"m":512,"n":512}','f32','program gemm m=512','precise',1,64,'[]');
CREATE INDEX ix_workloads_op ON workloads (op);
CREATE INDEX ix_environments_target_flags ON environments (target, flags);
CREATE INDEX ix_sessions_key ON sessions ("key");
CREATE INDEX ix_builds_build_key_id ON builds (build_key_id);
CREATE INDEX ix_trials_status ON trials (status);
CREATE INDEX ix_trials_workload_id_status ON trials (workload_id, status);
CREATE INDEX ix_trials_schedule_id_workload_id ON trials (schedule_id, workload_id);
CREATE INDEX ix_trials_servable ON trials (workload_id, context_id, median_us) WHERE status = 'ok' AND verified = 1;
CREATE INDEX ix_finals_workload_id_context_id_id ON finals (workload_id, context_id, id);
CREATE INDEX ix_finals_session_id ON finals (session_id);
COMMIT;
