-- The ground: the clock, the epoch, tenants and their lanes, and the counters that all others bring along.
--
-- Every key starts with the tenant. Two indexes cross tenants, the turn index and the due index, as whoever looks for
-- work must not visit each tenant. Payloads are bytes that no SQL looks into. There are no foreign keys: a task's rows are
-- written and removed together, by functions, under the lock of its tenant.
--
-- Each function is one transaction in one round trip, most of them for a batch of items that all name different tasks; a
-- refused item is a row that says so and never spoils its neighbours. They are PL/pgSQL because each of its statements has a
-- snapshot of its own: a statement that runs after a lock was won sees what the lock's former holder wrote. The order within
-- each is the same:
--   1. lock the tenants, sorted;  2. lock the tasks, sorted;  3. only then read the clock, once;
--   4. compare the fence and write, in one statement;  5. bring the counters along.
-- A clock read before the locks, or in the WHERE of the statement that takes them, would revive a lease that ran out while
-- it waited.

CREATE SCHEMA tenure;

-- The clock of the store. Tests put another one in its place; `serve` refuses to run on any but this.
CREATE FUNCTION tenure.task_now() RETURNS timestamptz LANGUAGE sql VOLATILE AS 'SELECT clock_timestamp()';

-- The server and the timeline of its log; NULL in a standby.
CREATE FUNCTION tenure.timeline() RETURNS text LANGUAGE sql VOLATILE AS $$
  SELECT CASE WHEN NOT pg_is_in_recovery() THEN
    (SELECT c.system_identifier FROM pg_control_system() c) || '/' || left(pg_walfile_name(pg_current_wal_lsn()), 8) END
$$;

-- Refuses, as every write would be, where the database takes none: a server that was demoted answers all the same.
CREATE FUNCTION tenure.check_writes() RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
  IF pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean THEN
    RAISE EXCEPTION 'the database takes no writes' USING ERRCODE = 'read_only_sql_transaction';
  END IF;
  RETURN true;
END $$;

-- One row. Tokens are compared together with the epoch, which an operator raises when a database was restored, so that no
-- token granted before ever matches again.
--
-- It keeps the timeline that it was raised on: where the database is on another one, it failed over, was restored to a moment, or
-- is a copy in another server, and what it acknowledged last may be lost.
CREATE TABLE tenure.epoch (
  one      boolean PRIMARY KEY DEFAULT true CHECK (one),
  epoch    bigint NOT NULL,
  timeline text   NOT NULL DEFAULT tenure.timeline()
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
) WITH (fillfactor = 40, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);

-- One row for each tenant that moves between cells, or did: what this cell may do with it. Written by who moves it alone, see
-- the migration `moves`.
CREATE TABLE tenure.move (
  tenant_id  text COLLATE "C" PRIMARY KEY,
  state      text COLLATE "C" NOT NULL CHECK (state IN ('DRAINING', 'FROZEN', 'LEFT', 'ARRIVING', 'HERE')),
  other      text    NOT NULL,                  -- the other cell's database
  epoch      bigint  NOT NULL,                  -- the tenant's: one more with each move; the cell with the highest is the right one
  copied     boolean NOT NULL DEFAULT false,    -- ARRIVING, and all that it has is here
  changed_at timestamptz NOT NULL
);

-- Tenants of which this cell does and changes nothing.
CREATE VIEW tenure.away AS SELECT m.tenant_id FROM tenure.move m WHERE m.state IN ('FROZEN', 'LEFT', 'ARRIVING');

-- WARM. One row per (tenant, workflow, version). It is open, and in the turn index, if and only if a worker could take
-- something from it now: something is ready, the tenant is below its lease limit, and no operator paused it. What cannot be
-- taken is not scanned. Nor is what was taken: while some transaction keeps an old snapshot, no vacuum removes it from the index
-- of what is ready, and each claim would pass it.
CREATE TABLE tenure.lane (
  tenant_id text COLLATE "C" NOT NULL,
  workflow  text COLLATE "C" NOT NULL,
  version   int     NOT NULL,
  ready     int     NOT NULL DEFAULT 0 CHECK (ready >= 0),
  ready_from timestamptz NOT NULL DEFAULT 'infinity',   -- nothing that is ready became so earlier
  turn      bigint  NOT NULL DEFAULT 0,
  paused    boolean NOT NULL DEFAULT false,
  open      boolean NOT NULL DEFAULT false,
  PRIMARY KEY (tenant_id, workflow, version)
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX lane_turn ON tenure.lane (workflow, version, turn, tenant_id) WHERE open;

-- What one task's transition does to the counters of its tenant and its lane.
CREATE TYPE tenure.delta AS (
  tenant_id text, workflow text, version int, outstanding int, leased int, ready int,
  ready_at timestamptz    -- the earliest of what became ready by it; NULL = nothing did
);

-- The one place that writes the counters. The caller holds the tenants. Returns the lanes that a waiting worker may now
-- find something in, as `workflow/version`.
CREATE FUNCTION tenure.apply_deltas(p_deltas tenure.delta[], p_take_turn boolean DEFAULT false) RETURNS text[]
LANGUAGE plpgsql AS $$
DECLARE v_opened text[];
BEGIN
  -- What belongs to a tenant travels in its row, as arrays: two lists are never compared with each other.
  WITH per_tenant AS MATERIALIZED (
    SELECT d.tenant_id, sum(d.outstanding)::int AS outstanding, sum(d.leased)::int AS leased, array_agg(d.workflow) AS workflows,
           array_agg(d.version) AS versions, array_agg(d.ready) AS readies, array_agg(d.ready_at) AS ready_ats
    FROM (
      SELECT u.tenant_id, u.workflow, u.version, sum(u.outstanding) AS outstanding, sum(u.leased) AS leased,
             sum(u.ready)::int AS ready, min(u.ready_at) AS ready_at
      FROM unnest(p_deltas) u GROUP BY 1, 2, 3) d
    GROUP BY 1
  ), counted AS (
    UPDATE tenant t SET
      outstanding = t.outstanding + p.outstanding, leased = t.leased + p.leased,
      turn = CASE WHEN p_take_turn THEN nextval('turn') ELSE t.turn END
    FROM per_tenant p WHERE t.tenant_id = p.tenant_id
    RETURNING t.tenant_id, t.turn, t.leased < t.max_leased AS room, t.leased - p.leased < t.max_leased AS had_room,
              p.workflows, p.versions, p.readies, p.ready_ats
  ), touched AS (
    SELECT c.tenant_id, c.turn, c.room, c.had_room, d.workflow, d.version, d.ready, d.ready_at
    FROM counted c
    CROSS JOIN LATERAL unnest(c.workflows, c.versions, c.readies, c.ready_ats) d(workflow, version, ready, ready_at)
    WHERE d.ready <> 0 OR d.ready_at IS NOT NULL
    UNION ALL    -- the tenant's other lanes, where something about them all has changed
    SELECT c.tenant_id, c.turn, c.room, c.had_room, l.workflow, l.version, 0, NULL
    FROM counted c JOIN lane l ON l.tenant_id = c.tenant_id
    WHERE (p_take_turn OR c.room <> c.had_room) AND l.ready > 0 AND NOT EXISTS (
      SELECT FROM unnest(c.workflows, c.versions, c.readies, c.ready_ats) d(workflow, version, ready, ready_at)
      WHERE d.workflow = l.workflow AND d.version = l.version AND (d.ready <> 0 OR d.ready_at IS NOT NULL))
  ), laned AS (
    UPDATE lane l SET ready = l.ready + x.ready, turn = x.turn,
      open = x.room AND NOT l.paused AND l.ready + x.ready > 0,
      ready_from = CASE WHEN l.ready + x.ready = 0 THEN 'infinity'
                        ELSE least(x.ready_at, CASE WHEN x.ready < 0
                          THEN first_ready(l.tenant_id, l.workflow, l.version, l.ready_from) ELSE l.ready_from END) END
    FROM touched x WHERE l.tenant_id = x.tenant_id AND l.workflow = x.workflow AND l.version = x.version
    RETURNING l.workflow, l.version, l.open AND (x.ready > 0 OR NOT x.had_room) AS opened
  )
  SELECT array_agg(DISTINCT x.workflow || '/' || x.version) INTO v_opened FROM laned x WHERE x.opened;
  RETURN coalesce(v_opened, '{}');
END $$;

-- Sets a tenant's policy; the last writer wins. Lanes follow at once. Returns the lanes that opened.
CREATE FUNCTION tenure.set_tenant_policy(
  p_tenant text, p_max_outstanding int, p_max_leased int, p_retention_ms bigint, p_max_input_bytes int,
  p_max_creates_per_second int
) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE v_opened text[];
BEGIN
  INSERT INTO tenant (tenant_id) VALUES (p_tenant) ON CONFLICT DO NOTHING;
  UPDATE tenant SET max_outstanding = p_max_outstanding, max_leased = p_max_leased, retention_ms = p_retention_ms,
    max_input_bytes = p_max_input_bytes, max_creates_per_second = p_max_creates_per_second
    WHERE tenant_id = p_tenant;
  WITH laned AS (
    UPDATE lane l SET open = NOT l.paused AND t.leased < t.max_leased, turn = t.turn
    FROM tenant t WHERE t.tenant_id = p_tenant AND l.tenant_id = p_tenant AND l.ready > 0
    RETURNING l.workflow, l.version, l.open
  )
  SELECT array_agg(x.workflow || '/' || x.version) INTO v_opened FROM laned x WHERE x.open;
  RETURN coalesce(v_opened, '{}');
END $$;
