-- Messages to tasks.

-- Messages to tasks, by id. The digest, of task, name and content, tells a repetition from a conflict.
CREATE TABLE tenure.signal (
  tenant_id   text COLLATE "C" NOT NULL,
  signal_id   text COLLATE "C" NOT NULL,
  task_id     uuid  NOT NULL,
  name        text COLLATE "C" NOT NULL,
  digest      bytea NOT NULL,
  media_type  text  NOT NULL,
  data        bytea NOT NULL,
  state       text COLLATE "C" NOT NULL CHECK (state IN ('PENDING', 'CONSUMED', 'DEAD_LETTER')),
  accepted_at timestamptz NOT NULL,
  PRIMARY KEY (tenant_id, signal_id)
);
ALTER TABLE tenure.signal ALTER COLUMN data SET STORAGE EXTERNAL;
CREATE INDEX signal_pending ON tenure.signal (tenant_id, task_id, name, accepted_at, signal_id) WHERE state = 'PENDING';
CREATE INDEX signal_of_task ON tenure.signal (tenant_id, task_id);
CREATE INDEX signal_listed ON tenure.signal (tenant_id, state, accepted_at, signal_id);
CREATE INDEX signal_over ON tenure.signal (tenant_id, accepted_at) WHERE state <> 'PENDING';

-- Publishes a signal. NOT_FOUND, SIGNAL_ID_CONFLICT, SIGNAL_LIMIT, or where it stands: CONSUMED (it woke the task), PENDING,
-- DEAD_LETTER. One decision, under the task's row: strictly before the wait's end the signal wins, at it the timeout does.
CREATE FUNCTION tenure.publish_signal(
  p_tenant text, p_signal text, p_task uuid, p_issuer text, p_subject text, p_name text, p_digest bytea, p_media text, p_data bytea,
  p_max_pending int
) RETURNS TABLE (outcome text, replayed boolean, opened text[])
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE v_now timestamptz; v_state text; v_digest bytea; v_opened text[] := '{}';
BEGIN
  PERFORM 1 FROM tenant WHERE tenant_id = p_tenant FOR NO KEY UPDATE;
  PERFORM 1 FROM task_state WHERE tenant_id = p_tenant AND task_id = p_task FOR NO KEY UPDATE;
  v_now := task_now();
  IF NOT EXISTS (SELECT FROM task t WHERE t.tenant_id = p_tenant AND t.task_id = p_task
                 AND (p_issuer IS NULL OR (t.issuer = p_issuer AND t.subject = p_subject))) THEN
    RETURN QUERY SELECT 'NOT_FOUND', false, v_opened;
    RETURN;
  END IF;
  SELECT x.state, x.digest INTO v_state, v_digest FROM signal x WHERE x.tenant_id = p_tenant AND x.signal_id = p_signal;
  IF v_state IS NOT NULL THEN
    RETURN QUERY SELECT CASE WHEN v_digest = p_digest THEN v_state ELSE 'SIGNAL_ID_CONFLICT' END, v_digest = p_digest, v_opened;
    RETURN;
  END IF;
  SELECT CASE
      WHEN s.ended_at IS NOT NULL THEN 'DEAD_LETTER'
      WHEN s.state <> 'WAITING' OR w.signal_name IS DISTINCT FROM p_name THEN 'PENDING'
      WHEN w.until <= v_now THEN 'DEAD_LETTER'
      ELSE 'CONSUMED' END
  INTO v_state FROM task_state s LEFT JOIN wait w ON w.tenant_id = p_tenant AND w.task_id = p_task
  WHERE s.tenant_id = p_tenant AND s.task_id = p_task;
  IF v_state = 'PENDING' AND p_max_pending <= (
      SELECT count(*) FROM (SELECT FROM signal x WHERE x.tenant_id = p_tenant AND x.task_id = p_task AND x.state = 'PENDING'
                            LIMIT p_max_pending) x) THEN
    RETURN QUERY SELECT 'SIGNAL_LIMIT', false, v_opened;
    RETURN;
  END IF;
  INSERT INTO signal (tenant_id, signal_id, task_id, name, digest, media_type, data, state, accepted_at)
    VALUES (p_tenant, p_signal, p_task, p_name, p_digest, p_media, p_data, v_state, v_now);
  IF v_state = 'CONSUMED' THEN
    v_opened := wake_task(p_tenant, p_task, v_now, 'SIGNAL', p_signal);
  END IF;
  RETURN QUERY SELECT v_state, false, v_opened;
END $$;

-- Forgets signals that were consumed or are dead letters, oldest first; never pending ones. Returns how many.
CREATE FUNCTION tenure.compact_signals(p_tenant text, p_older_ms bigint, p_limit int) RETURNS int
LANGUAGE plpgsql AS $$
DECLARE v_count int;
BEGIN
  WITH due AS (
    SELECT x.signal_id FROM signal x WHERE x.tenant_id = p_tenant AND x.state <> 'PENDING'
      AND x.accepted_at <= (SELECT task_now()) - p_older_ms * interval '1 ms'
      AND NOT EXISTS (SELECT FROM wait w JOIN task_state s ON s.tenant_id = w.tenant_id AND s.task_id = w.task_id
                      WHERE w.tenant_id = p_tenant AND w.task_id = x.task_id AND w.signal_id = x.signal_id
                        AND (s.ended_at IS NULL OR s.state = 'FAILED'))    -- which may be redriven
    ORDER BY x.accepted_at LIMIT p_limit FOR UPDATE SKIP LOCKED
  ), gone AS (
    DELETE FROM signal x USING due d WHERE x.tenant_id = p_tenant AND x.signal_id = d.signal_id RETURNING 1
  )
  SELECT count(*) INTO v_count FROM gone;
  RETURN v_count;
END $$;
