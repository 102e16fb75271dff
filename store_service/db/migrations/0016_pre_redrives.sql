-- Failed tasks that an operator sends back to work.

-- What a redrive did, so that its repetition is answered the same.
CREATE TABLE tenure.redrive (
  tenant_id   text COLLATE "C" NOT NULL,
  request_id  text COLLATE "C" NOT NULL,
  digest      bytea NOT NULL,
  actor       text  NOT NULL,
  redriven_at timestamptz NOT NULL,
  task_ids    uuid[] NOT NULL,
  outcomes    text[] NOT NULL,
  PRIMARY KEY (tenant_id, request_id)
);

-- The failed tasks that match all that is not NULL, oldest failure first. It looks at none that does not match.
CREATE FUNCTION tenure.failed_tasks(
  p_tenant text, p_workflow text, p_version int, p_reasons text[], p_from timestamptz, p_before timestamptz, p_tasks uuid[],
  p_limit int
) RETURNS uuid[] LANGUAGE plpgsql STABLE AS $$
DECLARE v_found uuid[]; v_from timestamptz := coalesce(p_from, '-infinity'); v_before timestamptz := coalesce(p_before, 'infinity');
  v_reasons text[] := coalesce(p_reasons, '{WORKER,CRASH_LIMIT,EXECUTION_DEADLINE}');
BEGIN
  IF p_tasks IS NULL THEN
    SELECT array_agg(f.task_id ORDER BY f.ended_at, f.task_id) INTO v_found FROM (
      SELECT q.task_id, q.ended_at FROM lane l CROSS JOIN unnest(v_reasons) r(reason) CROSS JOIN LATERAL (
        SELECT s.task_id, s.ended_at FROM task_state s
        WHERE s.tenant_id = p_tenant AND s.workflow = l.workflow AND s.version = l.version AND s.failed_for = r.reason
          AND s.state = 'FAILED' AND s.ended_at >= v_from AND s.ended_at < v_before
        ORDER BY s.ended_at, s.task_id LIMIT p_limit) q
      WHERE l.tenant_id = p_tenant AND (p_workflow IS NULL OR l.workflow = p_workflow)
        AND (p_version IS NULL OR l.version = p_version)
      ORDER BY q.ended_at, q.task_id LIMIT p_limit) f;
  ELSE
    SELECT array_agg(f.task_id ORDER BY f.ended_at, f.task_id) INTO v_found FROM (
      SELECT s.task_id, s.ended_at FROM unnest(p_tasks) u(id) JOIN task_state s ON s.tenant_id = p_tenant AND s.task_id = u.id
      WHERE (p_workflow IS NULL OR s.workflow = p_workflow) AND (p_version IS NULL OR s.version = p_version)
        AND s.failed_for = ANY (v_reasons) AND s.ended_at >= v_from AND s.ended_at < v_before
      ORDER BY s.ended_at, s.task_id LIMIT p_limit) f;
  END IF;
  RETURN v_found;
END $$;

-- Sends failed tasks back into the queue, as far as the tenant has room: OK with each task's outcome, TENANT_NOT_FOUND or
-- REQUEST_ID_CONFLICT. A dry run locks and writes nothing. What a repetition is told is kept for `p_memory_ms`.
CREATE FUNCTION tenure.redrive_tasks(
  p_tenant text, p_request text, p_digest bytea, p_actor text, p_workflow text, p_version int, p_reasons text[],
  p_from timestamptz, p_before timestamptz, p_tasks uuid[], p_limit int, p_dry_run boolean, p_memory_ms bigint
) RETURNS TABLE (outcome text, task_ids uuid[], outcomes text[], replayed boolean, opened text[])
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE v_now timestamptz; v_room int; v_found uuid[]; v_known redrive; v_outcomes text[]; v_deltas delta[]; v_opened text[] := '{}';
BEGIN
  IF NOT p_dry_run THEN
    PERFORM 1 FROM tenant t WHERE t.tenant_id = p_tenant FOR NO KEY UPDATE;
    SELECT r.* INTO v_known FROM redrive r WHERE r.tenant_id = p_tenant AND r.request_id = p_request;
    IF v_known.request_id IS NOT NULL THEN
      RETURN QUERY SELECT CASE WHEN v_known.digest = p_digest THEN 'OK' ELSE 'REQUEST_ID_CONFLICT' END, v_known.task_ids,
                          v_known.outcomes, true, v_opened;
      RETURN;
    END IF;
  END IF;
  v_found := failed_tasks(p_tenant, p_workflow, p_version, p_reasons, p_from, p_before, p_tasks, p_limit);
  IF NOT p_dry_run THEN
    PERFORM 1 FROM task_state s WHERE s.tenant_id = p_tenant AND s.task_id = ANY (v_found)
      ORDER BY s.task_id FOR NO KEY UPDATE;
  END IF;
  v_now := task_now();
  SELECT t.max_outstanding - t.outstanding INTO v_room FROM tenant t WHERE t.tenant_id = p_tenant;
  IF v_room IS NULL THEN
    RETURN QUERY SELECT 'TENANT_NOT_FOUND', v_found, v_outcomes, false, v_opened;
    RETURN;
  END IF;
  SELECT array_agg(CASE WHEN u.o <= v_room THEN 'REDRIVEN' ELSE 'OUTSTANDING_LIMIT' END ORDER BY u.o) INTO v_outcomes
    FROM unnest(v_found) WITH ORDINALITY u(id, o);
  IF NOT p_dry_run THEN
    WITH again AS (
      UPDATE task_state s SET state = 'QUEUED', ready = true, ready_at = v_now, check_at = d.at, deadline_at = d.at,
        abandon_at = NULL, cancel_requested_at = NULL, cancel_at = NULL, lived = false, attempts = 0, crashes = 0, retries = 0,
        ended_at = NULL, handle_ends_at = NULL, redriven_at = coalesce(s.redriven_at, v_now), failed_for = NULL,
        lines = s.lines + 1, change = s.change + 1,
        changed_at = greatest(s.changed_at, v_now)
      FROM unnest(v_found, v_outcomes) u(id, outcome)
      JOIN task t ON t.tenant_id = p_tenant AND t.task_id = u.id
      CROSS JOIN LATERAL (
        SELECT CASE WHEN t.execution_deadline_ms > 0 THEN v_now + t.execution_deadline_ms * interval '1 ms' END) d(at)
      WHERE u.outcome = 'REDRIVEN' AND s.tenant_id = p_tenant AND s.task_id = u.id
      RETURNING s.task_id, s.workflow, s.version, s.lines - 1 AS line
    ), unsaid AS (
      DELETE FROM outcome o USING again a WHERE o.tenant_id = p_tenant AND o.task_id = a.task_id
    ), told AS (
      INSERT INTO history (tenant_id, task_id, line, event, at, detail)
      SELECT p_tenant, a.task_id, a.line, 'REDRIVEN', v_now, p_actor FROM again a
    )
    SELECT array_agg((p_tenant, a.workflow, a.version, 1, 0, 1, v_now)::delta) INTO v_deltas FROM again a;
    v_opened := apply_deltas(v_deltas);
  END IF;
  v_found := coalesce(v_found, '{}');
  v_outcomes := coalesce(v_outcomes, '{}');
  SELECT v_found || array_agg(u.id ORDER BY u.o), v_outcomes || array_agg('NOT_FAILED'::text) INTO v_found, v_outcomes
    FROM unnest(p_tasks) WITH ORDINALITY u(id, o) WHERE u.id <> ALL (v_found);
  IF NOT p_dry_run THEN
    DELETE FROM redrive r WHERE r.tenant_id = p_tenant AND r.redriven_at < v_now - p_memory_ms * interval '1 ms';
    INSERT INTO redrive (tenant_id, request_id, digest, actor, redriven_at, task_ids, outcomes)
      VALUES (p_tenant, p_request, p_digest, p_actor, v_now, v_found, v_outcomes);
  END IF;
  RETURN QUERY SELECT 'OK', v_found, v_outcomes, false, v_opened;
END $$;
