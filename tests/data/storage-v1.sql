BEGIN TRANSACTION;
CREATE TABLE analyses (
	study_id INTEGER NOT NULL, 
	made_at DOUBLE NOT NULL, 
	summary JSON NOT NULL, 
	result JSON NOT NULL, 
	CONSTRAINT pk_analyses PRIMARY KEY (study_id), 
	CONSTRAINT fk_analyses_study_id FOREIGN KEY(study_id) REFERENCES studies (id) ON DELETE CASCADE
);
INSERT INTO "analyses" VALUES(1,1700000000.0,'{"baseline":{},"ranking":{},"sentences":["x"]}','{"sentences":["x"]}');
CREATE TABLE arms (
	id INTEGER NOT NULL, 
	study_id INTEGER NOT NULL, 
	"key" TEXT NOT NULL, 
	role TEXT NOT NULL, 
	config JSON NOT NULL, 
	CONSTRAINT pk_arms PRIMARY KEY (id), 
	CONSTRAINT uq_arms_study_id_key_role UNIQUE (study_id, "key", role), 
	CONSTRAINT fk_arms_study_id FOREIGN KEY(study_id) REFERENCES studies (id) ON DELETE CASCADE
);
INSERT INTO "arms" VALUES(1,1,'199e5d1f44bd','candidate','{"algorithm":"EAGLE3","draft_model":"k25-custom","num_steps":3,"topk":4,"num_draft_tokens":5,"cuda_graph":true}');
INSERT INTO "arms" VALUES(2,1,'3d6561c99a51','candidate','{"algorithm":"EAGLE3","draft_model":"k25-custom","num_steps":3,"topk":4,"num_draft_tokens":16,"cuda_graph":true}');
CREATE TABLE blocks (
	id INTEGER NOT NULL, 
	launch_id INTEGER NOT NULL, 
	stage TEXT NOT NULL, 
	concurrency INTEGER NOT NULL, 
	round INTEGER NOT NULL, 
	prompts_hash TEXT NOT NULL, 
	started_at DOUBLE NOT NULL, 
	elapsed_s DOUBLE NOT NULL, 
	n_requests INTEGER NOT NULL, 
	n_ok INTEGER NOT NULL, 
	output_tokens INTEGER NOT NULL, 
	output_throughput DOUBLE, 
	request_throughput DOUBLE, 
	goodput DOUBLE, 
	ttft_mean DOUBLE, 
	ttft_p50 DOUBLE, 
	ttft_p90 DOUBLE, 
	ttft_p95 DOUBLE, 
	ttft_p99 DOUBLE, 
	tpot_mean DOUBLE, 
	tpot_p50 DOUBLE, 
	tpot_p90 DOUBLE, 
	tpot_p95 DOUBLE, 
	tpot_p99 DOUBLE, 
	e2e_mean DOUBLE, 
	e2e_p50 DOUBLE, 
	e2e_p90 DOUBLE, 
	e2e_p95 DOUBLE, 
	e2e_p99 DOUBLE, 
	per_user_speed_p50 DOUBLE, 
	per_user_speed_p5 DOUBLE, 
	accept_length DOUBLE, 
	accept_length_request_mean DOUBLE, 
	accept_rate DOUBLE, 
	success_ratio DOUBLE, 
	achieved_concurrency DOUBLE, 
	accept_histogram JSON, 
	client JSON NOT NULL, 
	gpus JSON NOT NULL, 
	log_flags JSON NOT NULL, 
	invalid TEXT, 
	CONSTRAINT pk_blocks PRIMARY KEY (id), 
	CONSTRAINT fk_blocks_launch_id FOREIGN KEY(launch_id) REFERENCES launches (id) ON DELETE CASCADE
);
INSERT INTO "blocks" VALUES(1,1,'search',1,0,'abcdefabcdef',2000.0,4.0,4,4,400,100.0,1.0,NULL,50.0,50.0,50.0,50.0,50.0,9.59595959595959513421e+00,9.59595959595959513421e+00,9.59595959595959513421e+00,9.59595959595959513421e+00,9.59595959595959513421e+00,1000.0,1000.0,1000.0,1000.0,1000.0,1.04210526315789479671e+02,1.04210526315789479671e+02,2.1,2.1,0.275,1.0,1.0,'[40,100,60]','{"lag_p50_s":0.0001,"lag_p99_s":0.001,"cpu_share":0.1,"chunks":200,"rtt_s":0.002,"path_capacity_chunks_per_s":null,"prompt_format":null}','[{"gpu_uuid":"GPU-1","sm_clock_mhz":1980.0,"temperature_c":55.0,"power_w":400.0,"throttle_reasons":["sw_power_cap"]}]','{"retractions":"line \u2603"}',NULL);
CREATE TABLE events (
	id INTEGER NOT NULL, 
	study_id INTEGER NOT NULL, 
	at DOUBLE NOT NULL, 
	host TEXT, 
	kind TEXT NOT NULL, 
	detail JSON NOT NULL, 
	CONSTRAINT pk_events PRIMARY KEY (id), 
	CONSTRAINT fk_events_study_id FOREIGN KEY(study_id) REFERENCES studies (id) ON DELETE CASCADE
);
INSERT INTO "events" VALUES(1,1,1700000000.0,'gpu-a','launch','{"launch":1}');
CREATE TABLE gains (
	id INTEGER NOT NULL, 
	study_id INTEGER NOT NULL, 
	trial_id INTEGER, 
	metric TEXT NOT NULL, 
	concurrency INTEGER NOT NULL, 
	category TEXT, 
	reference TEXT NOT NULL, 
	comparison TEXT NOT NULL, 
	estimate DOUBLE, 
	low DOUBLE, 
	high DOUBLE, 
	basis TEXT, 
	stage TEXT, 
	search_gain JSON, 
	log_se DOUBLE, 
	df DOUBLE, 
	p_adjusted DOUBLE, 
	n_pairs INTEGER NOT NULL, 
	n_launches INTEGER NOT NULL, 
	value DOUBLE, 
	value_se DOUBLE, 
	accept_length DOUBLE, 
	break_even DOUBLE, 
	CONSTRAINT pk_gains PRIMARY KEY (id), 
	CONSTRAINT fk_gains_study_id FOREIGN KEY(study_id) REFERENCES studies (id) ON DELETE CASCADE, 
	CONSTRAINT fk_gains_trial_id FOREIGN KEY(trial_id) REFERENCES trials (id) ON DELETE CASCADE
);
INSERT INTO "gains" VALUES(1,1,1,'output_throughput',1,NULL,'baseline','slower',-0.086,-0.1,-0.071,'bracketed','search',NULL,NULL,NULL,NULL,0,0,NULL,NULL,NULL,NULL);
CREATE TABLE hosts (
	id INTEGER NOT NULL, 
	study_id INTEGER NOT NULL, 
	name TEXT NOT NULL, 
	kind TEXT NOT NULL, 
	state TEXT NOT NULL, 
	note TEXT, 
	facts JSON, 
	CONSTRAINT pk_hosts PRIMARY KEY (id), 
	CONSTRAINT uq_hosts_study_id_name UNIQUE (study_id, name), 
	CONSTRAINT fk_hosts_study_id FOREIGN KEY(study_id) REFERENCES studies (id) ON DELETE CASCADE
);
INSERT INTO "hosts" VALUES(1,1,'gpu-a','ssh','idle',NULL,NULL);
CREATE TABLE launches (
	id INTEGER NOT NULL, 
	study_id INTEGER NOT NULL, 
	trial_id INTEGER, 
	arm_id INTEGER NOT NULL, 
	host TEXT NOT NULL, 
	stage TEXT NOT NULL, 
	role TEXT NOT NULL, 
	sequence INTEGER NOT NULL, 
	pair INTEGER, 
	state TEXT NOT NULL, 
	verdict TEXT, 
	phase TEXT, 
	reason TEXT, 
	evidence TEXT, 
	advice TEXT, 
	argv JSON, 
	env_keys JSON, 
	run_dir TEXT, 
	log_path TEXT, 
	pid INTEGER, 
	port INTEGER, 
	marker TEXT, 
	begun_at DOUBLE NOT NULL, 
	started_at DOUBLE, 
	ready_at DOUBLE, 
	ended_at DOUBLE, 
	phases JSON NOT NULL, 
	effective JSON, 
	server_info JSON, 
	probe JSON, 
	stop_report JSON, 
	log_tail JSON, 
	CONSTRAINT pk_launches PRIMARY KEY (id), 
	CONSTRAINT fk_launches_study_id FOREIGN KEY(study_id) REFERENCES studies (id) ON DELETE CASCADE, 
	CONSTRAINT fk_launches_trial_id FOREIGN KEY(trial_id) REFERENCES trials (id) ON DELETE CASCADE, 
	CONSTRAINT fk_launches_arm_id FOREIGN KEY(arm_id) REFERENCES arms (id) ON DELETE CASCADE
);
INSERT INTO "launches" VALUES(1,1,1,1,'gpu-a','search','candidate',0,NULL,'ended','complete',NULL,NULL,NULL,NULL,'["python3","-m","sglang.launch_server","--model-path","/models/a b"]','[]','/srv/u/.specsweep/1','/srv/u/.specsweep/1/server.log',41,30000,'study/1/1/abc',1700000000.0,1000.0,1030.0,1700000000.0,'{"weights":12.5}','{"config":{"algorithm":"EAGLE3","draft_model":"k25-custom","num_steps":3,"topk":4,"num_draft_tokens":5,"cuda_graph":true},"pins":{"tp_size":1},"differences":[],"version":null,"status":"exact"}','{"tp_size":1}',NULL,'{"clean":true,"exit_code":-15,"took_s":1.0,"leftover_pids":[],"memory_left_mib":0,"note":""}','[]');
CREATE TABLE requests (
	id INTEGER NOT NULL, 
	block_id INTEGER NOT NULL, 
	idx INTEGER NOT NULL, 
	prompt_id TEXT NOT NULL, 
	category TEXT NOT NULL, 
	sent_s DOUBLE NOT NULL, 
	ttft_s DOUBLE, 
	end_s DOUBLE NOT NULL, 
	prompt_tokens INTEGER, 
	cached_tokens INTEGER, 
	output_tokens INTEGER, 
	token_source TEXT, 
	verify_steps INTEGER, 
	correct_drafts INTEGER, 
	accept_histogram JSON, 
	finish_reason TEXT, 
	retractions INTEGER, 
	chunks INTEGER NOT NULL, 
	error TEXT, 
	output_hash TEXT, 
	CONSTRAINT pk_requests PRIMARY KEY (id), 
	CONSTRAINT fk_requests_block_id FOREIGN KEY(block_id) REFERENCES blocks (id) ON DELETE CASCADE
);
INSERT INTO "requests" VALUES(1,1,0,'p0','code',0.0,0.05,1.0,20,0,100,'meta',50,55,'[10,25,15]','stop',0,50,NULL,'d2c03374e0f435a5');
INSERT INTO "requests" VALUES(2,1,1,'p1','math',1.0,0.05,2.0,20,0,100,'meta',50,55,'[10,25,15]','stop',0,50,NULL,'6d7b9014f03b36b3');
INSERT INTO "requests" VALUES(3,1,2,'p2','code',2.0,0.05,3.0,20,0,100,'meta',50,55,'[10,25,15]','stop',0,50,NULL,'635bca6aa5e4c0ad');
INSERT INTO "requests" VALUES(4,1,3,'p3','math',3.0,0.05,4.0,20,0,100,'meta',50,55,'[10,25,15]','stop',0,50,NULL,'dfd5726d86ed2c8b');
CREATE TABLE specsweep_meta (
	"key" TEXT NOT NULL, 
	value TEXT NOT NULL, 
	CONSTRAINT pk_specsweep_meta PRIMARY KEY ("key")
);
INSERT INTO "specsweep_meta" VALUES('schema_version','1');
CREATE TABLE studies (
	id INTEGER NOT NULL, 
	name TEXT NOT NULL, 
	created_at DOUBLE NOT NULL, 
	finished_at DOUBLE, 
	state TEXT NOT NULL, 
	engine TEXT NOT NULL, 
	simulated BOOLEAN NOT NULL, 
	profile TEXT, 
	spec JSON NOT NULL, 
	yaml TEXT NOT NULL, 
	space_hash TEXT NOT NULL, 
	seed INTEGER NOT NULL, 
	tool_version TEXT NOT NULL, 
	objectives JSON NOT NULL, 
	constraints JSON NOT NULL, 
	controller JSON, 
	heartbeat_at DOUBLE, 
	stop_requested BOOLEAN NOT NULL, 
	notes JSON NOT NULL, 
	CONSTRAINT pk_studies PRIMARY KEY (id), 
	CONSTRAINT uq_studies_name UNIQUE (name)
);
INSERT INTO "studies" VALUES(1,'kimi',1700000000.0,NULL,'running','sglang',0,NULL,'{"server":{"env":{"NCCL_PROTO":"LL 128","HF_TOKEN":"${HF_TOKEN}"}}}','name: kimi
','abc',1,'0.1','[{"metric":"output_throughput","concurrency":1,"maximize":true},{"metric":"ttft_p50","concurrency":1,"maximize":false}]','[{"metric":"ttft_p99","concurrency":null,"below":true,"limit":200.0,"text":"ttft_p99 < 200 ms"}]',NULL,NULL,0,'[]');
CREATE TABLE trials (
	id INTEGER NOT NULL, 
	study_id INTEGER NOT NULL, 
	number INTEGER NOT NULL, 
	arm_id INTEGER NOT NULL, 
	state TEXT NOT NULL, 
	verdict TEXT, 
	phase TEXT, 
	reason TEXT, 
	evidence TEXT, 
	advice TEXT, 
	retry TEXT, 
	dominates JSON, 
	flags JSON NOT NULL, 
	origin TEXT NOT NULL, 
	why TEXT NOT NULL, 
	attempt INTEGER NOT NULL, 
	host TEXT, 
	effective JSON, 
	effective_key TEXT, 
	params JSON NOT NULL, 
	objective_values JSON, 
	objective_stderr JSON, 
	constraint_values JSON, 
	created_at DOUBLE NOT NULL, 
	started_at DOUBLE, 
	finished_at DOUBLE, 
	log_path TEXT, 
	CONSTRAINT pk_trials PRIMARY KEY (id), 
	CONSTRAINT uq_trials_study_id_number UNIQUE (study_id, number), 
	CONSTRAINT fk_trials_study_id FOREIGN KEY(study_id) REFERENCES studies (id) ON DELETE CASCADE, 
	CONSTRAINT fk_trials_arm_id FOREIGN KEY(arm_id) REFERENCES arms (id) ON DELETE CASCADE
);
INSERT INTO "trials" VALUES(1,1,0,1,'finished','complete',NULL,NULL,NULL,NULL,NULL,NULL,'{}','known_good','',1,'gpu-a',NULL,NULL,'{}','{"output_throughput@1":82.3}','{}','{}',1700000000.0,1700000000.0,1700000000.0,NULL);
INSERT INTO "trials" VALUES(2,1,1,2,'finished','launch_oom','graph_capture','gpu_oom','torch.OutOfMemoryError: CUDA out of memory','Lower --mem-fraction-static to 0.8','never','["num_draft_tokens"]','{}','sampler','',1,NULL,NULL,NULL,'{}',NULL,NULL,NULL,1700000000.0,NULL,1700000000.0,'/logs/1');
CREATE INDEX ix_events_study_id ON events (study_id);
CREATE INDEX ix_trials_arm_id ON trials (arm_id);
CREATE INDEX ix_launches_arm_id ON launches (arm_id);
CREATE INDEX ix_launches_trial_id ON launches (trial_id);
CREATE INDEX ix_launches_study_id ON launches (study_id);
CREATE INDEX ix_gains_trial_id ON gains (trial_id);
CREATE INDEX ix_gains_study_id_metric_concurrency_reference_category ON gains (study_id, metric, concurrency, reference, category);
CREATE INDEX ix_blocks_launch_id ON blocks (launch_id);
CREATE INDEX ix_requests_block_id ON requests (block_id);
COMMIT;
