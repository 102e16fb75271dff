-- What is left of tasks that are over.

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

-- Removes ended tasks whose handle has ended and whose retention has passed since, in the order in which the handles ended,
-- and writes their tombstones. Only what got its tombstone here is removed.
CREATE FUNCTION tenure.remove_tasks(p_tenant text, p_limit int)
RETURNS SETOF tenure.tombstone LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE v_now timestamptz; v_last bigint; v_retention interval; v_task uuid[]; v_budgeted boolean;
BEGIN
  SELECT t.tombstones, t.retention_ms * interval '1 ms', t.budgeted INTO v_last, v_retention, v_budgeted
  FROM tenant t WHERE t.tenant_id = p_tenant FOR NO KEY UPDATE;
  IF v_last IS NULL THEN RETURN; END IF;
  v_now := task_now();
  WITH due AS MATERIALIZED (
    SELECT s.task_id, s.state, s.ended_at, s.handle_ends_at, t.tool, t.workflow, t.version, t.created_at
    FROM task_state s JOIN task t ON t.tenant_id = s.tenant_id AND t.task_id = s.task_id
    WHERE s.tenant_id = p_tenant AND s.handle_ends_at <= v_now - v_retention
    ORDER BY s.handle_ends_at, s.task_id LIMIT p_limit FOR UPDATE OF s SKIP LOCKED
  ), marked AS (
    INSERT INTO tombstone (tenant_id, cursor, task_id, tool, workflow, version, state, created_at, ended_at, removed_at)
    SELECT p_tenant, v_last + row_number() OVER (ORDER BY d.handle_ends_at, d.task_id), d.task_id, d.tool, d.workflow, d.version,
           d.state, d.created_at, d.ended_at, v_now
    FROM due d RETURNING task_id
  )
  SELECT array_agg(m.task_id) INTO v_task FROM marked m;
  IF v_task IS NULL THEN RETURN; END IF;
  UPDATE tenant SET tombstones = v_last + cardinality(v_task) WHERE tenant_id = p_tenant;
  DELETE FROM signal WHERE tenant_id = p_tenant AND task_id = ANY (v_task);
  DELETE FROM input_request WHERE tenant_id = p_tenant AND task_id = ANY (v_task);
  DELETE FROM early_answer WHERE tenant_id = p_tenant AND task_id = ANY (v_task);
  DELETE FROM wait WHERE tenant_id = p_tenant AND task_id = ANY (v_task);
  DELETE FROM checkpoint WHERE tenant_id = p_tenant AND task_id = ANY (v_task);
  DELETE FROM outcome WHERE tenant_id = p_tenant AND task_id = ANY (v_task);
  DELETE FROM progress WHERE tenant_id = p_tenant AND task_id = ANY (v_task);
  DELETE FROM history WHERE tenant_id = p_tenant AND task_id = ANY (v_task);
  IF v_budgeted THEN
    DELETE FROM reservation WHERE tenant_id = p_tenant AND task_id = ANY (v_task);
  END IF;
  DELETE FROM task_state WHERE tenant_id = p_tenant AND task_id = ANY (v_task);
  DELETE FROM task WHERE tenant_id = p_tenant AND task_id = ANY (v_task);
  RETURN QUERY SELECT x.* FROM tombstone x WHERE x.tenant_id = p_tenant AND x.cursor > v_last ORDER BY x.cursor;
END $$;
