-- Who does not want a task any more, and who still does.

-- Wishes for the end of tasks, or ends them: NOT_FOUND, ALREADY_TERMINAL, REQUESTED (a worker runs it) or CANCELLED.
-- `p_live` are the states that a cancel may leave, from the table of transitions.
CREATE FUNCTION tenure.cancel_tasks(
  p_tenant text[], p_task uuid[], p_issuer text[], p_subject text[], p_force boolean[], p_live text[], p_grace_ms bigint
) RETURNS TABLE (ordinal bigint, outcome text, worker_id text, opened text[])
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE v_now timestamptz; v_outcome text[]; v_worker text[]; v_deltas delta[]; v_opened text[]; v_held bigint[];
BEGIN
  PERFORM 1 FROM tenant WHERE tenant_id = ANY (p_tenant) ORDER BY tenant_id FOR NO KEY UPDATE;
  PERFORM 1 FROM unnest(p_tenant, p_task) u(t, id) JOIN task_state s ON s.tenant_id = u.t AND s.task_id = u.id
    ORDER BY s.tenant_id, s.task_id FOR NO KEY UPDATE OF s;
  v_now := task_now();
  WITH item AS MATERIALIZED (
    SELECT u.o, u.t, u.id, s.state, s.ready, s.worker_id, s.token, s.cancel_requested_at, s.recovery_ms, CASE
        WHEN s.task_id IS NULL OR t.task_id IS NULL THEN 'NOT_FOUND'
        WHEN s.state <> ALL (p_live) THEN 'ALREADY_TERMINAL'
        WHEN s.state = 'LEASED' AND s.expires_at > v_now AND NOT p_force[u.o] THEN 'REQUESTED'
        ELSE 'CANCELLED' END AS outcome
    FROM unnest(p_tenant, p_task) WITH ORDINALITY u(t, id, o)
    LEFT JOIN task_state s ON s.tenant_id = u.t AND s.task_id = u.id
    LEFT JOIN task t ON t.tenant_id = u.t AND t.task_id = u.id
      AND (p_issuer[u.o] IS NULL OR (t.issuer = p_issuer[u.o] AND t.subject = p_subject[u.o]))
  ), wished AS (
    UPDATE task_state s SET cancel_requested_at = v_now, cancel_at = v_now + p_grace_ms * interval '1 ms',
      check_at = least(s.check_at, v_now + p_grace_ms * interval '1 ms'),
      lines = s.lines + 1, change = s.change + 1, changed_at = greatest(s.changed_at, v_now)
    FROM item i WHERE i.outcome = 'REQUESTED' AND i.cancel_requested_at IS NULL AND s.tenant_id = i.t AND s.task_id = i.id
    RETURNING s.tenant_id, s.task_id, s.lines - 1 AS line
  ), ended AS (
    UPDATE task_state s SET state = 'CANCELLED', ready = false, check_at = NULL, worker_id = NULL, expires_at = NULL,
      recovery_ms = NULL, cancel_requested_at = coalesce(s.cancel_requested_at, v_now),
      lines = s.lines + 1, change = s.change + 1, changed_at = greatest(s.changed_at, v_now),
      ended_at = greatest(s.changed_at, v_now), handle_ends_at = greatest(s.changed_at, v_now) + s.ttl_ms * interval '1 ms'
    FROM item i WHERE i.outcome = 'CANCELLED' AND s.tenant_id = i.t AND s.task_id = i.id
    RETURNING s.tenant_id, s.task_id, s.workflow, s.version, i.state AS was, i.ready AS was_ready, i.worker_id, i.token,
              s.lines - 1 AS line
  ), told AS (
    INSERT INTO history (tenant_id, task_id, line, event, at, worker_id, token)
    SELECT w.tenant_id, w.task_id, w.line, 'CANCEL_REQUESTED', v_now, NULL, NULL FROM wished w
    UNION ALL
    SELECT e.tenant_id, e.task_id, e.line, 'CANCELLED', v_now, e.worker_id, CASE WHEN e.worker_id IS NOT NULL THEN e.token END
    FROM ended e
  ), counted AS (
    SELECT array_agg((e.tenant_id, e.workflow, e.version, -1, -(e.was = 'LEASED')::int, -e.was_ready::int, NULL)::delta) AS deltas
    FROM ended e
  )
  SELECT array_agg(i.outcome ORDER BY i.o), array_agg(i.worker_id ORDER BY i.o), (SELECT c.deltas FROM counted c),
         array_agg(i.o) FILTER (WHERE i.outcome = 'CANCELLED' AND i.recovery_ms IS NOT NULL)
  INTO v_outcome, v_worker, v_deltas, v_held FROM item i;
  IF v_held IS NOT NULL THEN
    PERFORM forfeit_reservation(p_tenant[h.o], p_task[h.o], v_now, 'CANCELLED') FROM unnest(v_held) h(o);
  END IF;
  PERFORM close_waits(p_tenant, p_task);
  v_opened := apply_deltas(v_deltas);
  RETURN QUERY SELECT u.o, u.outcome, u.w, v_opened FROM unnest(v_outcome, v_worker) WITH ORDINALITY u(outcome, w, o);
END $$;

-- Says that tasks are still waited for, until `p_abandon_ms` from now, or for good where that is 0: OK or NOT_FOUND. What is
-- waited for for good stays so.
-- `check_at` only ever moves closer here, so that a renewal stays in its page; what looks then finds nothing due.
CREATE FUNCTION tenure.attach_tasks(p_tenant text[], p_task uuid[], p_issuer text[], p_subject text[], p_abandon_ms bigint[])
RETURNS TABLE (ordinal bigint, outcome text)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE v_now timestamptz;
BEGIN
  PERFORM 1 FROM unnest(p_tenant, p_task) u(t, id) JOIN task_state s ON s.tenant_id = u.t AND s.task_id = u.id
    ORDER BY s.tenant_id, s.task_id FOR NO KEY UPDATE OF s;
  v_now := task_now();
  RETURN QUERY
  WITH item AS MATERIALIZED (
    SELECT u.o, u.t, u.id, t.task_id IS NOT NULL AS found,
           CASE WHEN p_abandon_ms[u.o] > 0 THEN v_now + p_abandon_ms[u.o] * interval '1 ms' END AS abandon_at
    FROM unnest(p_tenant, p_task) WITH ORDINALITY u(t, id, o)
    LEFT JOIN task t ON t.tenant_id = u.t AND t.task_id = u.id
      AND (p_issuer[u.o] IS NULL OR (t.issuer = p_issuer[u.o] AND t.subject = p_subject[u.o]))
  ), attached AS (
    UPDATE task_state s SET abandon_at = i.abandon_at, check_at = least(s.check_at, i.abandon_at)
    FROM item i WHERE i.found AND s.tenant_id = i.t AND s.task_id = i.id AND s.ended_at IS NULL
      AND s.abandon_at IS NOT NULL
  )
  SELECT i.o, CASE WHEN i.found THEN 'OK' ELSE 'NOT_FOUND' END FROM item i;
END $$;
