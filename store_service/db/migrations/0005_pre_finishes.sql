-- How a lease ends, and what came of the task.

-- Written once, in the step that ends a task by completion or failure.
CREATE TABLE tenure.outcome (
  tenant_id     text COLLATE "C" NOT NULL,
  task_id       uuid NOT NULL,
  media_type    text,              -- of the result, or of the error's data where there is any
  data          bytea,
  error_code    int,               -- NULL = a result
  error_message text,
  PRIMARY KEY (tenant_id, task_id),
  CHECK ((error_code IS NULL) = (error_message IS NULL)),
  CHECK ((media_type IS NULL) = (data IS NULL) AND (error_code IS NOT NULL OR data IS NOT NULL))
);
ALTER TABLE tenure.outcome ALTER COLUMN data SET STORAGE EXTERNAL;

-- Ends leases. The disposition is COMPLETED, FAILED, CANCELLED, RELEASED; FAILED with a retry policy that is not spent
-- becomes RETRIED. Work that would go back to the queue though its end was wished for is CANCELLED instead. The same finish
-- by the same lease is answered again; any other is LEASE_LOST. BUDGET_RESERVED while the task holds a reservation.
CREATE FUNCTION tenure.finish_tasks(
  p_tenant text[], p_task uuid[], p_worker text[], p_token bigint[], p_epoch bigint[], p_disposition text[], p_digest bytea[],
  p_media text[], p_data bytea[], p_code int[], p_message text[], p_delay_ms bigint[], p_max_attempts int[],
  p_initial_ms bigint[], p_max_ms bigint[]
) RETURNS TABLE (ordinal bigint, outcome text, retry_at timestamptz, opened text[])
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE v_now timestamptz; v_epoch bigint; v_done bigint[]; v_retry_at timestamptz[]; v_waited boolean; v_deltas delta[];
  v_opened text[];
BEGIN
  PERFORM 1 FROM tenant WHERE tenant_id = ANY (p_tenant) ORDER BY tenant_id FOR NO KEY UPDATE;
  PERFORM 1 FROM unnest(p_tenant, p_task) u(t, id) JOIN task_state s ON s.tenant_id = u.t AND s.task_id = u.id
    ORDER BY s.tenant_id, s.task_id FOR NO KEY UPDATE OF s;
  v_now := task_now();
  SELECT e.epoch INTO v_epoch FROM epoch e;
  -- All but the data is unnested: that is wide, and not looked at before it is written.
  WITH held AS (
    SELECT u.*, s.retries, s.cancel_requested_at IS NOT NULL AS wished,
           CASE WHEN u.disposition = 'FAILED' AND s.retries + 1 < u.max_attempts THEN 'RETRIED' ELSE u.disposition END AS event
    FROM unnest(p_tenant, p_task, p_worker, p_token, p_epoch, p_disposition, p_digest, p_media, p_code, p_message, p_delay_ms,
                p_max_attempts, p_initial_ms, p_max_ms)
         WITH ORDINALITY u(t, id, w, k, e, disposition, digest, media, code, message, delay_ms, max_attempts, initial_ms, max_ms, o)
    JOIN task_state s ON s.tenant_id = u.t AND s.task_id = u.id AND s.worker_id = u.w AND s.token = u.k AND u.e = v_epoch
      AND s.expires_at > v_now AND s.recovery_ms IS NULL
  ), decided AS MATERIALIZED (
    SELECT h.o, h.t, h.id, h.w, h.k, h.digest, h.media, h.code, h.message, e.event,
      e.event IN ('RETRIED', 'RELEASED') AS back, CASE e.event
        WHEN 'RETRIED' THEN random() * least(h.max_ms, h.initial_ms * power(2, least(h.retries, 40)))
        WHEN 'RELEASED' THEN h.delay_ms ELSE 0 END * interval '1 ms' AS delay
    FROM held h
    CROSS JOIN LATERAL (
      SELECT CASE WHEN h.wished AND h.event IN ('RETRIED', 'RELEASED') THEN 'CANCELLED' ELSE h.event END) e(event)
  ), ended AS (
    UPDATE task_state s SET
      state = CASE WHEN d.back THEN 'QUEUED' ELSE d.event END,
      ready = d.back AND d.delay = interval '0', ready_at = v_now + d.delay,
      check_at = CASE WHEN d.back THEN least(nullif(v_now + d.delay, v_now), s.deadline_at, s.abandon_at) END,
      worker_id = NULL, expires_at = NULL, retries = s.retries + (d.event = 'RETRIED')::int,
      finish_token = d.k, finish_digest = d.digest, lines = s.lines + 1, change = s.change + 1,
      changed_at = greatest(s.changed_at, v_now), ended_at = CASE WHEN NOT d.back THEN greatest(s.changed_at, v_now) END,
      failed_for = CASE WHEN d.event = 'FAILED' THEN 'WORKER' END,
      handle_ends_at = CASE WHEN NOT d.back THEN greatest(s.changed_at, v_now) + s.ttl_ms * interval '1 ms' END
    FROM decided d WHERE s.tenant_id = d.t AND s.task_id = d.id
    RETURNING d.o, d.event, d.w, d.k, d.back, d.media, d.code, d.message, s.tenant_id, s.task_id, s.workflow, s.version, s.ready,
              s.ready_at, s.lines - 1 AS line
  ), kept AS (
    INSERT INTO outcome (tenant_id, task_id, media_type, data, error_code, error_message)
    SELECT x.tenant_id, x.task_id, x.media, p_data[x.o], x.code, x.message
    FROM ended x WHERE x.event IN ('COMPLETED', 'FAILED')
  ), told AS (
    INSERT INTO history (tenant_id, task_id, line, event, at, worker_id, token, detail)
    SELECT x.tenant_id, x.task_id, x.line, x.event, v_now, x.w, x.k, coalesce(x.message, '') FROM ended x
  ), counted AS (
    SELECT (x.tenant_id, x.workflow, x.version, -count(*) FILTER (WHERE NOT x.back), -count(*), count(*) FILTER (WHERE x.ready),
            min(x.ready_at) FILTER (WHERE x.ready))::delta AS delta
    FROM ended x GROUP BY x.tenant_id, x.workflow, x.version
  )
  SELECT array_agg(x.o), array_agg(CASE WHEN x.back THEN x.ready_at END), bool_or(x.k > 1),
         (SELECT array_agg(c.delta) FROM counted c)
  INTO v_done, v_retry_at, v_waited, v_deltas FROM ended x;
  PERFORM close_signals(p_tenant, p_task);
  IF v_waited THEN    -- whoever waited was claimed again
    PERFORM close_questions(p_tenant, p_task);
  END IF;
  v_opened := apply_deltas(v_deltas);
  RETURN QUERY SELECT d.o, 'OK', d.retry_at, v_opened FROM unnest(v_done, v_retry_at) d(o, retry_at);
  IF cardinality(v_done) = cardinality(p_task) THEN
    RETURN;
  END IF;
  RETURN QUERY
  SELECT u.o,
         CASE WHEN s.finish_token = u.k AND s.finish_digest = u.digest AND u.e = v_epoch THEN 'OK'
              WHEN s.recovery_ms IS NOT NULL AND s.worker_id = p_worker[u.o] AND s.token = u.k AND u.e = v_epoch
                AND s.expires_at > v_now THEN 'BUDGET_RESERVED'
              ELSE 'LEASE_LOST' END,
         CASE WHEN s.state = 'QUEUED' AND s.finish_token = u.k THEN s.ready_at END, v_opened
  FROM unnest(p_tenant, p_task, p_token, p_epoch, p_digest) WITH ORDINALITY u(t, id, k, e, digest, o)
  LEFT JOIN task_state s ON s.tenant_id = u.t AND s.task_id = u.id
  WHERE u.o <> ALL (coalesce(v_done, '{}'));
END $$;
