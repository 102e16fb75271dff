-- The ground: tenants, tasks, leases, checkpoints, outcomes, history, tombstones.
--
-- Every key starts with the tenant. Two indexes cross tenants, the turn index and the due index, as whoever looks for
-- work must not visit each tenant. Payloads are bytes that no SQL looks into. There are no foreign keys: a task's rows are
-- written and removed together, by the functions of the next file, under the lock of its tenant.

CREATE SCHEMA tenure;

-- The clock of the store. Tests put another one in its place; `serve` refuses to run on any but this.
CREATE FUNCTION tenure.task_now() RETURNS timestamptz LANGUAGE sql VOLATILE AS 'SELECT clock_timestamp()';

-- One row. Tokens are compared together with the epoch, which an operator raises when a database was restored, so that no
-- token granted before ever matches again.
CREATE TABLE tenure.epoch (
  one   boolean PRIMARY KEY DEFAULT true CHECK (one),
  epoch bigint NOT NULL
);
INSERT INTO tenure.epoch (epoch) VALUES (1);

-- The order in which tenants were last served. Gaps do not matter.
CREATE SEQUENCE tenure.turn;

-- HOT. One row a tenant: its policy, its counters, and the tenant's mutex. Whoever changes a task's state, a counter, or a
-- lane holds this row first. No secondary index and room in the page, so that each update stays in its page.
CREATE TABLE tenure.tenant (
  tenant_id       text COLLATE "C" PRIMARY KEY,
  outstanding     int    NOT NULL DEFAULT 0 CHECK (outstanding >= 0),   -- tasks that have not ended
  leased          int    NOT NULL DEFAULT 0 CHECK (leased >= 0),        -- of them in state LEASED, expired ones included
  turn            bigint NOT NULL DEFAULT 0,                            -- when it was last served; 0 = never = first
  tombstones      bigint NOT NULL DEFAULT 0,                            -- the last cursor given to a tombstone
  max_outstanding int    NOT NULL DEFAULT 10000,
  max_leased      int    NOT NULL DEFAULT 100,
  max_input_bytes int    NOT NULL DEFAULT 1048576 CHECK (max_input_bytes BETWEEN 1 AND 1048576),
  max_creates_per_second int NOT NULL DEFAULT 0 CHECK (max_creates_per_second >= 0),   -- 0 = as many as come
  creates_left    double precision NOT NULL DEFAULT 0,                  -- of one second's worth, as it was at creates_at
  creates_at      timestamptz NOT NULL DEFAULT '1970-01-01 00:00:00+00',
  budgeted        boolean NOT NULL DEFAULT false,                       -- it has a budget, or had one
  retention_ms    bigint NOT NULL DEFAULT 86400000 CHECK (retention_ms >= 86400000),
  CHECK (max_leased BETWEEN 1 AND max_outstanding)
) WITH (fillfactor = 40, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);

-- WARM. One row per (tenant, workflow, version). It is open, and in the turn index, if and only if a worker could take
-- something from it now: something is ready and the tenant is below its lease limit. What cannot be taken is not scanned.
CREATE TABLE tenure.lane (
  tenant_id text COLLATE "C" NOT NULL,
  workflow  text COLLATE "C" NOT NULL,
  version   int     NOT NULL,
  ready     int     NOT NULL DEFAULT 0 CHECK (ready >= 0),
  turn      bigint  NOT NULL DEFAULT 0,
  open      boolean NOT NULL DEFAULT false,
  PRIMARY KEY (tenant_id, workflow, version)
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);
CREATE INDEX lane_turn ON tenure.lane (workflow, version, turn, tenant_id) WHERE open;

-- COLD, written once: what was agreed at a task's creation, and its input.
CREATE TABLE tenure.task (
  tenant_id             text COLLATE "C" NOT NULL,
  task_id               uuid NOT NULL,
  request_id            text COLLATE "C" NOT NULL,
  request_digest        bytea  NOT NULL,     -- SHA-256 of what was asked for, to tell a repetition from a conflict
  tool                  text   NOT NULL,
  workflow              text COLLATE "C" NOT NULL,
  version               int    NOT NULL,
  issuer                text   NOT NULL,
  subject               text   NOT NULL,
  client_capabilities   bytea  NOT NULL,
  output_schema         bytea  NOT NULL,
  ttl_ms                bigint NOT NULL,
  poll_interval_ms      bigint NOT NULL,
  execution_deadline_ms bigint NOT NULL,
  trace_parent          text   NOT NULL,
  priority              int    NOT NULL,
  media_type            text   NOT NULL,
  input                 bytea  NOT NULL,
  created_at            timestamptz NOT NULL,
  forked_from           uuid,                -- the task whose first checkpoints it started with
  forked_checkpoints    int,
  PRIMARY KEY (tenant_id, task_id),
  UNIQUE (tenant_id, request_id),
  CHECK ((forked_from IS NULL) = (forked_checkpoints IS NULL))
);
ALTER TABLE tenure.task ALTER COLUMN input SET STORAGE EXTERNAL;
CREATE INDEX task_created ON tenure.task (tenant_id, created_at DESC, task_id DESC);

-- HOT. A task's state and lease. `expires_at` is in no index, so that a heartbeat stays in its page.
CREATE TABLE tenure.task_state (
  tenant_id           text COLLATE "C" NOT NULL,
  task_id             uuid NOT NULL,
  workflow            text COLLATE "C" NOT NULL,
  version             int     NOT NULL,
  priority            int     NOT NULL,
  state               text COLLATE "C" NOT NULL,
  ready               boolean NOT NULL,              -- QUEUED and not resting: it can be taken, and its lane counts it
  ready_at            timestamptz NOT NULL,          -- since when, or until when it rests
  check_at            timestamptz,                   -- when somebody must look again; NULL = nothing will fall due
  deadline_at         timestamptz,                   -- the execution deadline
  abandon_at          timestamptz,                   -- when nobody waits for it any more
  cancel_requested_at timestamptz,
  cancel_at           timestamptz,                   -- when a cancel that was asked for is forced
  worker_id           text COLLATE "C",
  token               bigint  NOT NULL DEFAULT 0,
  expires_at          timestamptz,
  lived               boolean NOT NULL DEFAULT false,  -- the lease's worker was heard of since it was granted
  attempts            int     NOT NULL DEFAULT 0,
  crashes             int     NOT NULL DEFAULT 0,
  retries             int     NOT NULL DEFAULT 0,
  checkpoints         int     NOT NULL DEFAULT 0,
  checkpoint_bytes    bigint  NOT NULL DEFAULT 0,
  progress            bigint  NOT NULL DEFAULT 0,
  lines               int     NOT NULL DEFAULT 0,
  change              bigint  NOT NULL DEFAULT 1,
  changed_at          timestamptz NOT NULL,
  ended_at            timestamptz,
  ttl_ms              bigint  NOT NULL,
  handle_ends_at      timestamptz,                   -- one ttl after its end
  finish_token        bigint,                        -- replay memory of the last finish, until the next claim
  finish_digest       bytea,
  recovery_ms         bigint,                        -- it holds a reservation, forfeited so long after its lease ran out
  PRIMARY KEY (tenant_id, task_id),
  CHECK (state IN ('QUEUED', 'LEASED', 'WAITING', 'COMPLETED', 'FAILED', 'CANCELLED')),
  CHECK ((state = 'LEASED') = (worker_id IS NOT NULL)),
  CHECK ((state = 'LEASED') = (expires_at IS NOT NULL)),
  CHECK ((state IN ('COMPLETED', 'FAILED', 'CANCELLED')) = (ended_at IS NOT NULL)),
  CHECK ((ended_at IS NULL) = (handle_ends_at IS NULL)),
  CHECK (NOT ready OR state = 'QUEUED'),
  CHECK (ended_at IS NULL OR (check_at IS NULL AND recovery_ms IS NULL))
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.01);
CREATE INDEX task_ready ON tenure.task_state (tenant_id, workflow, version, priority DESC, ready_at, task_id) WHERE ready;
CREATE INDEX task_due ON tenure.task_state (check_at) WHERE check_at IS NOT NULL;
CREATE INDEX task_ended ON tenure.task_state (tenant_id, handle_ends_at) WHERE handle_ends_at IS NOT NULL;

-- What each worker's last claim took, so that a claim whose answer was lost can be answered again.
CREATE TABLE tenure.worker_claim (
  worker_id  text COLLATE "C" PRIMARY KEY,
  request_id text COLLATE "C" NOT NULL,
  tenant_ids text[]   NOT NULL,
  task_ids   uuid[]   NOT NULL,
  tokens     bigint[] NOT NULL,
  claimed_at timestamptz NOT NULL
) WITH (fillfactor = 60);

-- Append only. A step that is done.
CREATE TABLE tenure.checkpoint (
  tenant_id  text COLLATE "C" NOT NULL,
  task_id    uuid   NOT NULL,
  revision   int    NOT NULL,
  step       text   NOT NULL,
  media_type text   NOT NULL,
  data       bytea  NOT NULL,
  token      bigint NOT NULL,
  created_at timestamptz NOT NULL,
  PRIMARY KEY (tenant_id, task_id, revision)
);
ALTER TABLE tenure.checkpoint ALTER COLUMN data SET STORAGE EXTERNAL;

-- Written once, in the step that ends a task by completion or failure.
CREATE TABLE tenure.outcome (
  tenant_id     text COLLATE "C" NOT NULL,
  task_id       uuid NOT NULL,
  media_type    text,              -- of the result, or of the error's data where there is any
  data          bytea,
  error_code    int,               -- NULL = a result
  error_message text,
  error_reason  text COLLATE "C",
  PRIMARY KEY (tenant_id, task_id),
  CHECK ((error_code IS NULL) = (error_message IS NULL) AND (error_code IS NULL) = (error_reason IS NULL)),
  CHECK ((media_type IS NULL) = (data IS NULL) AND (error_code IS NOT NULL OR data IS NOT NULL))
);
ALTER TABLE tenure.outcome ALTER COLUMN data SET STORAGE EXTERNAL;

-- A ring of the last 16 reports of a task; `slot` is the sequence number modulo 16.
CREATE TABLE tenure.progress (
  tenant_id text COLLATE "C" NOT NULL,
  task_id   uuid   NOT NULL,
  slot      int    NOT NULL CHECK (slot BETWEEN 0 AND 15),
  sequence  bigint NOT NULL,
  value     double precision NOT NULL,
  total     double precision,
  message   text   NOT NULL,
  PRIMARY KEY (tenant_id, task_id, slot)
) WITH (fillfactor = 60);

-- Append only. One line for each transition of a task.
CREATE TABLE tenure.history (
  tenant_id text COLLATE "C" NOT NULL,
  task_id   uuid NOT NULL,
  line      int  NOT NULL,
  event     text COLLATE "C" NOT NULL,
  at        timestamptz NOT NULL,
  worker_id text COLLATE "C",
  token     bigint,
  detail    text NOT NULL DEFAULT '',
  PRIMARY KEY (tenant_id, task_id, line)
);

-- Append only. That a removed task existed and how it ended. The cursor is given under the tenant's lock, so that the
-- order of cursors is the order in which tombstones become visible.
CREATE TABLE tenure.tombstone (
  tenant_id  text COLLATE "C" NOT NULL,
  cursor     bigint NOT NULL,
  task_id    uuid   NOT NULL,
  tool       text   NOT NULL,
  workflow   text COLLATE "C" NOT NULL,
  version    int    NOT NULL,
  state      text COLLATE "C" NOT NULL,
  created_at timestamptz NOT NULL,
  ended_at   timestamptz NOT NULL,
  removed_at timestamptz NOT NULL,
  PRIMARY KEY (tenant_id, cursor),
  UNIQUE (tenant_id, task_id)
);
