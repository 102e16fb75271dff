-- What a worker saves and tells while it holds a lease: steps that are done, and progress.

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

-- Appends a checkpoint to each task: OK, LEASE_LOST, REVISION_CONFLICT or CHECKPOINT_LIMIT.
CREATE FUNCTION tenure.append_checkpoints(
  p_tenant text[], p_task uuid[], p_worker text[], p_token bigint[], p_epoch bigint[], p_revision int[], p_step text[],
  p_media text[], p_data bytea[], p_max_count int, p_max_bytes bigint
) RETURNS TABLE (ordinal bigint, outcome text)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE v_now timestamptz; v_epoch bigint;
BEGIN
  PERFORM 1 FROM unnest(p_tenant, p_task) u(t, id) JOIN task_state s ON s.tenant_id = u.t AND s.task_id = u.id
    ORDER BY s.tenant_id, s.task_id FOR NO KEY UPDATE OF s;
  v_now := task_now();
  SELECT e.epoch INTO v_epoch FROM epoch e;
  RETURN QUERY
  WITH item AS (
    SELECT u.*, CASE
        WHEN s.task_id IS NULL THEN 'LEASE_LOST'
        WHEN s.checkpoints <> u.revision THEN 'REVISION_CONFLICT'
        WHEN u.revision >= p_max_count OR s.checkpoint_bytes + octet_length(p_data[u.o]) > p_max_bytes THEN 'CHECKPOINT_LIMIT'
        ELSE 'OK' END AS outcome
    FROM unnest(p_tenant, p_task, p_worker, p_token, p_epoch, p_revision) WITH ORDINALITY u(t, id, w, k, e, revision, o)
    LEFT JOIN task_state s ON s.tenant_id = u.t AND s.task_id = u.id AND s.worker_id = u.w AND s.token = u.k AND u.e = v_epoch
      AND s.expires_at > v_now
  ), grown AS (
    UPDATE task_state s SET checkpoints = s.checkpoints + 1, lived = true,
      checkpoint_bytes = s.checkpoint_bytes + octet_length(p_data[i.o])
    FROM item i WHERE i.outcome = 'OK' AND s.tenant_id = i.t AND s.task_id = i.id
  ), kept AS (
    INSERT INTO checkpoint (tenant_id, task_id, revision, step, media_type, data, token, created_at)
    SELECT i.t, i.id, i.revision, p_step[i.o], p_media[i.o], p_data[i.o], i.k, v_now FROM item i WHERE i.outcome = 'OK'
  )
  SELECT i.o, i.outcome FROM item i;
END $$;

-- Records progress reports: OK with the report's number, or LEASE_LOST.
CREATE FUNCTION tenure.report_progress(
  p_tenant text[], p_task uuid[], p_worker text[], p_token bigint[], p_epoch bigint[], p_value double precision[],
  p_total double precision[], p_message text[]
) RETURNS TABLE (ordinal bigint, outcome text, sequence bigint)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE v_now timestamptz; v_epoch bigint;
BEGIN
  PERFORM 1 FROM unnest(p_tenant, p_task) u(t, id) JOIN task_state s ON s.tenant_id = u.t AND s.task_id = u.id
    ORDER BY s.tenant_id, s.task_id FOR NO KEY UPDATE OF s;
  v_now := task_now();
  SELECT e.epoch INTO v_epoch FROM epoch e;
  RETURN QUERY
  WITH item AS (
    SELECT * FROM unnest(p_tenant, p_task, p_worker, p_token, p_epoch) WITH ORDINALITY u(t, id, w, k, e, o)
  ), reported AS (
    UPDATE task_state s SET progress = s.progress + 1, lived = true, change = s.change + 1,
      changed_at = greatest(s.changed_at, v_now)
    FROM item i WHERE s.tenant_id = i.t AND s.task_id = i.id AND s.worker_id = i.w AND s.token = i.k AND i.e = v_epoch
      AND s.expires_at > v_now
    RETURNING i.o, s.tenant_id, s.task_id, s.progress
  ), ring AS (
    INSERT INTO progress AS p (tenant_id, task_id, slot, sequence, value, total, message)
    SELECT r.tenant_id, r.task_id, r.progress % 16, r.progress, p_value[r.o], p_total[r.o], p_message[r.o] FROM reported r
    ON CONFLICT (tenant_id, task_id, slot) DO UPDATE
      SET sequence = excluded.sequence, value = excluded.value, total = excluded.total, message = excluded.message
  )
  SELECT r.o, 'OK', r.progress FROM reported r
  UNION ALL
  SELECT i.o, 'LEASE_LOST', NULL FROM item i WHERE i.o NOT IN (SELECT r.o FROM reported r);
END $$;
