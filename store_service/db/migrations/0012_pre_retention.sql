-- What is left of tasks that are over.

-- Append only. That a removed task existed and how it ended. The cursor is given under the tenant's lock, so that the
-- order of cursors is the order in which tombstones become visible.
CREATE TABLE tenure.tombstone (
  tenant_id      text COLLATE "C" NOT NULL,
  cursor         bigint NOT NULL,
  task_id        uuid   NOT NULL,
  tool           text   NOT NULL,
  workflow       text COLLATE "C" NOT NULL,
  version        int    NOT NULL,
  state          text COLLATE "C" NOT NULL,
  created_at     timestamptz NOT NULL,
  ended_at       timestamptz NOT NULL,
  removed_at     timestamptz NOT NULL,
  removed_by     text   NOT NULL,
  history_lines  int    NOT NULL,
  history_digest bytea  NOT NULL,    -- SHA-256 of the history
  history        bytea,              -- NULL = longer than 1 MiB
  PRIMARY KEY (tenant_id, cursor),
  UNIQUE (tenant_id, task_id),
  CHECK (octet_length(history_digest) = 32)
);

-- Removes ended tasks whose handle has ended and whose retention has passed since, in the order in which the handles ended,
-- and writes their tombstones. Only what got its tombstone here is removed, and nothing that is held. The cleanup lease is
-- locked, not merely read: LEASE_LOST, without a tombstone, where it does not hold. OK without a tombstone where none is due.
-- It stops before tasks with more than 20,000 lines and checkpoints, or 64 MiB of these, but for the first: the tenant waits
-- meanwhile, and a step that takes too long would be taken back and tried again for ever.
CREATE FUNCTION tenure.remove_tasks(p_tenant text, p_owner text, p_principal text, p_token bigint, p_epoch bigint, p_limit int)
RETURNS TABLE (outcome text, stone tombstone) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE v_now timestamptz; v_last bigint; v_retention interval; v_task uuid[]; v_budgeted boolean;
BEGIN
  PERFORM 1 FROM cleanup_lease WHERE tenant_id = p_tenant FOR NO KEY UPDATE;
  SELECT t.tombstones, t.retention_ms * interval '1 ms', t.budgeted INTO v_last, v_retention, v_budgeted
  FROM tenant t WHERE t.tenant_id = p_tenant FOR NO KEY UPDATE;
  v_now := task_now();
  IF NOT has_cleanup(p_tenant, p_owner, p_principal, p_token, p_epoch, v_now) THEN
    RETURN QUERY SELECT 'LEASE_LOST', NULL::tombstone;
    RETURN;
  END IF;
  WITH due AS MATERIALIZED (
    SELECT s.task_id, s.state, s.ended_at, s.handle_ends_at, s.lines, s.checkpoints, s.checkpoint_bytes, t.tool, t.workflow,
           t.version, t.created_at
    FROM task_state s JOIN task t ON t.tenant_id = s.tenant_id AND t.task_id = s.task_id
    WHERE s.tenant_id = p_tenant AND s.handle_ends_at <= v_now - v_retention AND NOT s.held
    ORDER BY s.handle_ends_at, s.task_id LIMIT p_limit FOR UPDATE OF s SKIP LOCKED
  ), weighed AS (
    SELECT d.*, row_number() OVER w = 1
             OR (sum(d.lines + d.checkpoints) OVER w <= 20000 AND sum(d.checkpoint_bytes) OVER w <= 67108864) AS fits
    FROM due d WINDOW w AS (ORDER BY d.handle_ends_at, d.task_id)
  ), told AS MATERIALIZED (
    SELECT d.*, h.history FROM weighed d CROSS JOIN LATERAL (    -- as `retention.proto` says that it is told
      SELECT convert_to(string_agg(json_build_array(x.line, x.event, (extract(epoch FROM x.at) * 1000000)::bigint, x.worker_id,
                                                    x.token, x.detail)::text || E'\n', '' ORDER BY x.line), 'UTF8') AS history
      FROM history x WHERE x.tenant_id = p_tenant AND x.task_id = d.task_id) h
    WHERE d.fits
  ), marked AS (
    INSERT INTO tombstone (tenant_id, cursor, task_id, tool, workflow, version, state, created_at, ended_at, removed_at,
                           removed_by, history_lines, history_digest, history)
    SELECT p_tenant, v_last + row_number() OVER (ORDER BY d.handle_ends_at, d.task_id), d.task_id, d.tool, d.workflow, d.version,
           d.state, d.created_at, d.ended_at, v_now, p_principal, d.lines, sha256(d.history),
           CASE WHEN octet_length(d.history) <= 1048576 THEN d.history END
    FROM told d RETURNING task_id
  )
  SELECT array_agg(m.task_id) INTO v_task FROM marked m;
  IF v_task IS NULL THEN
    RETURN QUERY SELECT 'OK', NULL::tombstone;
    RETURN;
  END IF;
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
  RETURN QUERY SELECT 'OK', x FROM tombstone x WHERE x.tenant_id = p_tenant AND x.cursor > v_last ORDER BY x.cursor;
END $$;
