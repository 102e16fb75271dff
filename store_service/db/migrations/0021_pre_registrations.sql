-- Who asks for work, so that a task that nobody would take is told from one that waits for its turn.

-- One row for each workflow version that workers ask for, on behalf of a tenant, or of all. Written every few seconds by each
-- store for the claims it heard, and forgotten a day after the last.
CREATE TABLE tenure.registration (
  tenant_id text COLLATE "C" NOT NULL,     -- empty = every tenant
  workflow  text COLLATE "C" NOT NULL,
  version   int  NOT NULL,
  asked_at  timestamptz NOT NULL,
  PRIMARY KEY (tenant_id, workflow, version)
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);

CREATE FUNCTION tenure.forget_registrations(p_older_ms bigint, p_limit int) RETURNS int LANGUAGE plpgsql AS $$
DECLARE v_forgotten int;
BEGIN
  DELETE FROM registration r WHERE r.ctid = ANY (ARRAY(
    SELECT x.ctid FROM registration x WHERE x.asked_at < task_now() - p_older_ms * interval '1 ms' LIMIT p_limit FOR UPDATE SKIP LOCKED));
  GET DIAGNOSTICS v_forgotten = ROW_COUNT;
  RETURN v_forgotten;
END $$;
