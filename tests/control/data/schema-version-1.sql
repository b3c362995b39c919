BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0001');
CREATE TABLE attempts (
	job VARCHAR(40) NOT NULL, 
	epoch INTEGER NOT NULL, 
	placement TEXT NOT NULL, 
	types TEXT NOT NULL, 
	load INTEGER NOT NULL, 
	started_at BIGINT NOT NULL, 
	ended_at BIGINT, 
	exit_code INTEGER, 
	cause VARCHAR(16) NOT NULL, 
	detail TEXT NOT NULL, 
	CONSTRAINT pk_attempts PRIMARY KEY (job, epoch), 
	CONSTRAINT fk_attempts_job_jobs FOREIGN KEY(job) REFERENCES jobs (id)
);
INSERT INTO "attempts" VALUES('854xyh',1,'[{"node": "n0", "devices": [0, 1]}]','gpu',2000,1794945889437194,1794945890546514,143,'stopped','told to stop (requeued)');
INSERT INTO "attempts" VALUES('854xyh',2,'[{"node": "n0", "devices": [0, 1]}]','gpu',2000,1794945890546514,1794945892730814,0,'exited','');
INSERT INTO "attempts" VALUES('j6fd8g',1,'[{"node": "n0", "devices": [0, 1]}]','gpu',2000,1794945892730814,1794945894938586,0,'exited','');
CREATE TABLE eras (
	id INTEGER NOT NULL, 
	"after" BIGINT NOT NULL, 
	time BIGINT NOT NULL, 
	header TEXT NOT NULL, 
	why TEXT NOT NULL, 
	CONSTRAINT pk_eras PRIMARY KEY (id)
);
INSERT INTO "eras" VALUES(0,0,1794945889350710,'{"dovetail":1,"policy":"kueue","options":{"whole":true,"score":"pack"},"seed":0,"cluster":{"nodes":[{"name":"n0","gpus":2,"type":{"name":"gpu","memory":17179869184,"speed":1.0,"sliceable":false},"cpus":1152921504606846976,"memory":1152921504606846976,"sockets":1,"nvlink":0,"rack":"","price":0.0,"spot":false,"idle_watts":0.0,"gpu_watts":0.0,"partitions":[]}],"links":{"nvlink":600000000000.0,"socket":32000000000.0,"node":16000000000.0,"rack":12500000000.0,"cluster":10000000000.0},"tenants":[]}}','the plane was set up');
CREATE TABLE jobs (
	id VARCHAR(40) NOT NULL, 
	seq BIGINT NOT NULL, 
	request VARCHAR(16) NOT NULL, 
	array VARCHAR(16), 
	task INTEGER, 
	name TEXT NOT NULL, 
	kind VARCHAR(16) NOT NULL, 
	tenant VARCHAR(64) NOT NULL, 
	user VARCHAR(64) NOT NULL, 
	model TEXT NOT NULL, 
	gpus INTEGER NOT NULL, 
	load INTEGER NOT NULL, 
	nodes INTEGER NOT NULL, 
	types TEXT NOT NULL, 
	dependency TEXT, 
	at_most INTEGER, 
	begin_at BIGINT, 
	time_limit BIGINT, 
	submitted_at BIGINT NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	reason TEXT NOT NULL, 
	priority INTEGER NOT NULL, 
	held_by VARCHAR(16) NOT NULL, 
	eligible_at BIGINT, 
	first_started_at BIGINT, 
	started_at BIGINT, 
	ended_at BIGINT, 
	epoch INTEGER NOT NULL, 
	restarts INTEGER NOT NULL, 
	retries INTEGER NOT NULL, 
	exit_code INTEGER, 
	cause VARCHAR(16) NOT NULL, 
	placement TEXT, 
	wanted VARCHAR(16) NOT NULL, 
	gpu_time BIGINT NOT NULL, 
	lost_time BIGINT NOT NULL, 
	progress TEXT, 
	CONSTRAINT pk_jobs PRIMARY KEY (id), 
	CONSTRAINT fk_jobs_request_requests FOREIGN KEY(request) REFERENCES requests (id), 
	CONSTRAINT uq_jobs_seq UNIQUE (seq)
);
INSERT INTO "jobs" VALUES('854xyh',1,'854xyh',NULL,NULL,'job','train','team','ann','',2,2000,1,'',NULL,NULL,NULL,3600000000,1794945889437194,'completed','',0,'',1794945889437194,1794945889437194,1794945890546514,1794945892730814,2,1,0,0,'exited','[{"node": "n0", "devices": [0, 1]}]','',6587240000,2218640000,NULL);
INSERT INTO "jobs" VALUES('j6fd8g',2,'j6fd8g',NULL,NULL,'job','train','team','ann','',2,2000,1,'',NULL,NULL,NULL,3600000000,1794945890469620,'completed','',0,'',1794945890469620,1794945892730814,1794945892730814,1794945894938586,1,0,0,0,'exited','[{"node": "n0", "devices": [0, 1]}]','',4415544000,0,NULL);
INSERT INTO "jobs" VALUES('xggddm',3,'xggddm',NULL,NULL,'job','train','team','ann','',2,2000,1,'',NULL,NULL,NULL,3600000000,1794945894972294,'held','JobHeldUser',0,'user',NULL,NULL,NULL,NULL,0,0,0,NULL,'',NULL,'',0,0,NULL);
CREATE TABLE journal (
	number BIGINT NOT NULL, 
	era INTEGER NOT NULL, 
	time BIGINT NOT NULL, 
	line TEXT NOT NULL, 
	CONSTRAINT pk_journal PRIMARY KEY (number), 
	CONSTRAINT fk_journal_era_eras FOREIGN KEY(era) REFERENCES eras (id)
);
INSERT INTO "journal" VALUES(1,0,1794945889437194,'{"n":1,"t":1794945889437194,"decided":true,"events":[[1794945889437194,10,"854xyh",0,{"id":"854xyh","arrived_at":1794945889437194,"work":3600000000,"shape":{"each":2},"tenant":"team","user":"ann","traits":{"checkpoint":{"on_stop":false}}}]],"actions":[["Start","854xyh",1,[[0,3,1000,0,0]],null]]}');
INSERT INTO "journal" VALUES(2,0,1794945890469620,'{"n":2,"t":1794945890469620,"decided":true,"events":[[1794945890469620,10,"j6fd8g",0,{"id":"j6fd8g","arrived_at":1794945890469620,"work":3600000000,"shape":{"each":2},"tenant":"team","user":"ann","traits":{"checkpoint":{"on_stop":false}}}]],"actions":[]}');
INSERT INTO "journal" VALUES(3,0,1794945890546514,'{"n":3,"t":1794945890546514,"decided":true,"events":[[1794945890546514,2,"854xyh",1,0]],"actions":[["Start","854xyh",2,[[0,3,1000,0,0]],null]]}');
INSERT INTO "journal" VALUES(4,0,1794945892730814,'{"n":4,"t":1794945892730814,"decided":true,"events":[[1794945892730814,0,"854xyh",2,null]],"actions":[["Start","j6fd8g",1,[[0,3,1000,0,0]],null]]}');
INSERT INTO "journal" VALUES(5,0,1794945894938586,'{"n":5,"t":1794945894938586,"decided":true,"events":[[1794945894938586,0,"j6fd8g",1,null]],"actions":[]}');
CREATE TABLE keys (
	owner VARCHAR(16) NOT NULL, 
	"key" VARCHAR(255) NOT NULL, 
	digest BLOB NOT NULL, 
	answer TEXT NOT NULL, 
	time BIGINT NOT NULL, 
	CONSTRAINT pk_keys PRIMARY KEY (owner, "key")
);
CREATE TABLE meta (
	"key" VARCHAR(64) NOT NULL, 
	value TEXT NOT NULL, 
	CONSTRAINT pk_meta PRIMARY KEY ("key")
);
INSERT INTO "meta" VALUES('leader','{"term": 1, "url": "http://127.0.0.1:8470"}');
INSERT INTO "meta" VALUES('clock','{"wall": 1794945889418496, "plane": 1794945889418496, "scale": 1.0}');
CREATE TABLE requests (
	id VARCHAR(16) NOT NULL, 
	body TEXT NOT NULL, 
	workdir TEXT NOT NULL, 
	CONSTRAINT pk_requests PRIMARY KEY (id)
);
INSERT INTO "requests" VALUES('854xyh','{"run": "sleep 2", "resources": {"gpus": 2}, "time": "1h"}','');
INSERT INTO "requests" VALUES('j6fd8g','{"run": "sleep 2", "resources": {"gpus": 2}, "time": "1h"}','');
INSERT INTO "requests" VALUES('xggddm','{"run": "sleep 5", "resources": {"gpus": 2}, "time": "1h", "hold": true}','');
CREATE TABLE snapshots (
	era INTEGER NOT NULL, 
	number BIGINT NOT NULL, 
	state BLOB NOT NULL, 
	CONSTRAINT pk_snapshots PRIMARY KEY (era, number), 
	CONSTRAINT fk_snapshots_era_eras FOREIGN KEY(era) REFERENCES eras (id)
);
INSERT INTO "snapshots" VALUES(0,0,X'785E4D4FD16EC3200CFC173FA3896AADDAE457A2A8A2E0AD6CC4DE4C483455FDF7199A4E7BF271BE3B1F3758507264827E678078D579ECF6DDFE703A75AF077BDC59A5CB7441815E61C6EF36E722941B9A78C100FD9B4B190D082E11D7B39BA1A79292125C289C43C127E113FBCF7F0E979C4C7F6ACCB3C66E61017DACDD1E87564C9E27DCAEE2C4F2F3B41187CA0F40164603DE25A4E0B4F1ED6EE0CA29E8B2C22F89BE09076BEC8B1D552B98D0E548EF0F85B6CBB5DCA0AB2B46D98C4E24B66F565E0A5133D4C7075F6AE078FF057A2D6BA7');
INSERT INTO "snapshots" VALUES(0,5,X'785E4D8FD14EC3300C45FFC5CF110A6C852EBF525553961816486D709A5668DABFE3940DF192C4C7F7DA371758504A6202F7688078D5FBE5B03FECBB5ECF5DDFF5CF8AEB744201D71928F805EEC9C05C850AB89D8189178CE05E7D2E68407049B81EFD0C8E6ACE0AB8523CC68A771032878F7F0E9FBD4C7F6A2CB38EBD0D8B1852CBA64457AF98034FA885D5AD38B17CDF6DC4B1F101C8C26820F88C14BD26BE5C0D9C39476DB6E7A7A4B009076BEC831D552B98D197446FBF0A4D575AB8415B674C72337A91B47DB371A9449BA115EF7C6A03C7EB0F9E456BC9');
CREATE TABLE speeds (
	model VARCHAR(200) NOT NULL, 
	type VARCHAR(64) NOT NULL, 
	gpus INTEGER NOT NULL, 
	rate FLOAT NOT NULL, 
	count BIGINT NOT NULL, 
	time BIGINT NOT NULL, 
	CONSTRAINT pk_speeds PRIMARY KEY (model, type, gpus)
);
CREATE TABLE tenants (
	name VARCHAR(64) NOT NULL, 
	parent VARCHAR(64) NOT NULL, 
	weight FLOAT NOT NULL, 
	quota INTEGER, 
	borrow INTEGER, 
	"limit" INTEGER, 
	account VARCHAR(64) NOT NULL, 
	CONSTRAINT pk_tenants PRIMARY KEY (name)
);
CREATE TABLE tokens (
	id VARCHAR(16) NOT NULL, 
	hash BLOB NOT NULL, 
	name TEXT NOT NULL, 
	tenant VARCHAR(64) NOT NULL, 
	user VARCHAR(64) NOT NULL, 
	role VARCHAR(8) NOT NULL, 
	created_at BIGINT NOT NULL, 
	expires_at BIGINT, 
	revoked_at BIGINT, 
	CONSTRAINT pk_tokens PRIMARY KEY (id), 
	CONSTRAINT uq_tokens_hash UNIQUE (hash)
);
CREATE INDEX ix_jobs_array ON jobs (array);
CREATE INDEX ix_jobs_ended_at ON jobs (ended_at);
CREATE INDEX ix_jobs_state_seq ON jobs (state, seq);
CREATE INDEX ix_jobs_tenant_seq ON jobs (tenant, seq);
CREATE INDEX ix_attempts_ended_at ON attempts (ended_at);
COMMIT;
