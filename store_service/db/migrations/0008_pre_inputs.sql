-- Questions that tasks ask, and their answers.

-- The questions of a task, for its life, in the order asked. A key is never used again.
CREATE TABLE tenure.input_request (
  tenant_id    text COLLATE "C" NOT NULL,
  task_id      uuid   NOT NULL,
  number       int    NOT NULL,             -- dense from 0
  key          text COLLATE "C" NOT NULL,
  name         text COLLATE "C" NOT NULL,
  token        bigint NOT NULL,             -- of the lease that asked; 0 = asked before there was a task
  method       text   NOT NULL,
  params       bytea  NOT NULL,
  asked_at     timestamptz NOT NULL,
  state        text COLLATE "C" NOT NULL CHECK (state IN ('OPEN', 'ANSWERED', 'OVER')),
  response     bytea,
  answered_at  timestamptz,
  by_issuer    text,
  by_subject   text,
  PRIMARY KEY (tenant_id, task_id, number),
  UNIQUE (tenant_id, task_id, key),
  CHECK ((state = 'ANSWERED') = (response IS NOT NULL))
);
ALTER TABLE tenure.input_request ALTER COLUMN params SET STORAGE EXTERNAL, ALTER COLUMN response SET STORAGE EXTERNAL;

-- Answers given at a task's creation, before their questions.
CREATE TABLE tenure.early_answer (
  tenant_id text COLLATE "C" NOT NULL,
  task_id   uuid  NOT NULL,
  key       text COLLATE "C" NOT NULL,
  response  bytea NOT NULL,
  PRIMARY KEY (tenant_id, task_id, key)
);

-- Answers open questions of a task: for each key ACCEPTED or IGNORED; one row NOT_FOUND when there is no such task. The task
-- goes on when no question is open.
CREATE FUNCTION tenure.answer_inputs(
  p_tenant text, p_task uuid, p_issuer text, p_subject text, p_by_issuer text, p_by_subject text, p_key text[], p_response bytea[]
) RETURNS TABLE (ordinal bigint, outcome text, opened text[])
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE v_now timestamptz; v_waits boolean; v_accepted text[]; v_opened text[] := '{}';
BEGIN
  PERFORM 1 FROM tenant WHERE tenant_id = p_tenant FOR NO KEY UPDATE;
  PERFORM 1 FROM task_state WHERE tenant_id = p_tenant AND task_id = p_task FOR NO KEY UPDATE;
  v_now := task_now();
  IF NOT EXISTS (SELECT FROM task t WHERE t.tenant_id = p_tenant AND t.task_id = p_task
                 AND (p_issuer IS NULL OR (t.issuer = p_issuer AND t.subject = p_subject))) THEN
    RETURN QUERY SELECT 0::bigint, 'NOT_FOUND', v_opened;
    RETURN;
  END IF;
  SELECT s.state = 'WAITING' AND w.kind = 'INPUT' AND (w.until IS NULL OR v_now < w.until) INTO v_waits
  FROM task_state s LEFT JOIN wait w ON w.tenant_id = p_tenant AND w.task_id = p_task
  WHERE s.tenant_id = p_tenant AND s.task_id = p_task;
  IF v_waits THEN
    WITH answered AS (
      UPDATE input_request r SET state = 'ANSWERED', response = u.response, answered_at = v_now,
        by_issuer = p_by_issuer, by_subject = p_by_subject
      FROM unnest(p_key, p_response) u(key, response)
      WHERE r.tenant_id = p_tenant AND r.task_id = p_task AND r.key = u.key AND r.state = 'OPEN'
      RETURNING r.key
    )
    SELECT array_agg(a.key) INTO v_accepted FROM answered a;
  END IF;
  IF v_accepted IS NOT NULL THEN
    IF EXISTS (SELECT FROM input_request r WHERE r.tenant_id = p_tenant AND r.task_id = p_task AND r.state = 'OPEN') THEN
      UPDATE task_state s SET change = s.change + 1, changed_at = greatest(s.changed_at, v_now)
        WHERE s.tenant_id = p_tenant AND s.task_id = p_task;
    ELSE
      v_opened := wake_task(p_tenant, p_task, v_now, 'INPUT', NULL);
    END IF;
  END IF;
  RETURN QUERY SELECT u.o, CASE WHEN u.key = ANY (v_accepted) THEN 'ACCEPTED' ELSE 'IGNORED' END, v_opened
    FROM unnest(p_key) WITH ORDINALITY u(key, o) ORDER BY u.o;
END $$;
