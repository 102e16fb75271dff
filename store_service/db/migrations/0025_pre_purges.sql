-- Tombstones that are forgotten for good.

-- Never deleted. What was prepared to be purged, and what became of it, in one column that one locked row decides. A claim and
-- the deadline end by themselves.
CREATE TABLE tenure.purge (
  tenant_id        text COLLATE "C" NOT NULL,
  number           bigint NOT NULL,
  request_id       text COLLATE "C" NOT NULL,
  request_digest   bytea  NOT NULL,
  state            text COLLATE "C" NOT NULL CHECK (state IN ('PENDING', 'APPROVED', 'REJECTED', 'EXECUTED')),
  prepared_by      text   NOT NULL,
  prepared_at      timestamptz NOT NULL,
  deadline_at      timestamptz NOT NULL,
  tombstones       int    NOT NULL,
  first_cursor     bigint NOT NULL,
  last_cursor      bigint NOT NULL,
  watermark        bigint NOT NULL,
  fingerprint      bytea  NOT NULL,    -- SHA-256 of the lines `cursor task`, by rising cursor
  reviewer         text,
  claim_token      bigint NOT NULL DEFAULT 0,
  claim_expires_at timestamptz,
  decided_by       text,
  decided_at       timestamptz,
  rejection        text,
  PRIMARY KEY (tenant_id, number),
  UNIQUE (tenant_id, request_id),
  CHECK ((state = 'PENDING') = (decided_by IS NULL) AND (decided_by IS NULL) = (decided_at IS NULL)),
  CHECK ((state = 'REJECTED') = (rejection IS NOT NULL)),
  CHECK (state NOT IN ('APPROVED', 'EXECUTED') OR decided_by <> prepared_by)
);
CREATE INDEX purge_pending ON tenure.purge (tenant_id, deadline_at) WHERE state = 'PENDING';

-- What a purge is about, until it was executed, rejected, or ran out.
CREATE TABLE tenure.purge_item (
  tenant_id text COLLATE "C" NOT NULL,
  number    bigint NOT NULL,
  cursor    bigint NOT NULL,
  task_id   uuid   NOT NULL,
  PRIMARY KEY (tenant_id, number, cursor),
  UNIQUE (tenant_id, cursor)
);

-- Append only. That tombstones were purged, by whom, and which.
CREATE TABLE tenure.purge_evidence (
  tenant_id     text COLLATE "C" NOT NULL,
  number        bigint NOT NULL,
  prepared_by   text   NOT NULL,
  prepared_at   timestamptz NOT NULL,
  approved_by   text   NOT NULL,
  approved_at   timestamptz NOT NULL,
  executed_by   text   NOT NULL,
  executed_at   timestamptz NOT NULL,
  cleanup_token bigint NOT NULL,
  tombstones    int    NOT NULL,
  first_cursor  bigint NOT NULL,
  last_cursor   bigint NOT NULL,
  watermark     bigint NOT NULL,
  receipt       text   NOT NULL,
  fingerprint   bytea  NOT NULL,
  PRIMARY KEY (tenant_id, number)
);
CREATE TRIGGER purge_evidence_stays BEFORE UPDATE ON tenure.purge_evidence
  FOR EACH STATEMENT EXECUTE FUNCTION tenure.refuse_change();
CREATE TRIGGER purge_stays BEFORE UPDATE ON tenure.purge FOR EACH ROW
  WHEN (OLD.state IN ('REJECTED', 'EXECUTED') OR (OLD.state = 'APPROVED' AND NEW.state <> 'EXECUTED') OR (NEW.prepared_by, NEW.fingerprint, NEW.tombstones, NEW.deadline_at)
        IS DISTINCT FROM (OLD.prepared_by, OLD.fingerprint, OLD.tombstones, OLD.deadline_at))
  EXECUTE FUNCTION tenure.refuse_change();

-- Where a purge stands at a time.
CREATE FUNCTION tenure.purge_state(p_purge tenure.purge, p_now timestamptz) RETURNS text LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE WHEN p_purge.state IN ('PENDING', 'APPROVED') AND p_purge.deadline_at <= p_now THEN 'EXPIRED'
              WHEN p_purge.state = 'PENDING' AND p_purge.claim_expires_at > p_now THEN 'CLAIMED'
              ELSE p_purge.state END $$;

-- Prepares a purge of a tenant's oldest tombstones that are kept elsewhere, are old enough, are not held, and belong to no other
-- purge that may come: OK with the purge, the one that there was where the same was asked for before; REQUEST_ID_CONFLICT,
-- LEASE_LOST, NOT_EXPORTED or NOTHING_TO_PURGE.
CREATE FUNCTION tenure.prepare_purge(
  p_tenant text, p_owner text, p_principal text, p_token bigint, p_epoch bigint, p_request text, p_digest bytea,
  p_retention_ms bigint, p_limit int, p_approval_ms bigint
) RETURNS TABLE (outcome text, purge purge) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE v_now timestamptz; v_purge purge; v_number bigint; v_watermark bigint;
BEGIN
  PERFORM 1 FROM cleanup_lease WHERE tenant_id = p_tenant FOR NO KEY UPDATE;
  PERFORM 1 FROM tenant WHERE tenant_id = p_tenant FOR NO KEY UPDATE;
  v_now := task_now();
  SELECT p.* INTO v_purge FROM purge p WHERE p.tenant_id = p_tenant AND p.request_id = p_request;
  IF FOUND THEN
    RETURN QUERY SELECT CASE v_purge.request_digest WHEN p_digest THEN 'OK' ELSE 'REQUEST_ID_CONFLICT' END, v_purge;
    RETURN;
  END IF;
  SELECT max(e.through_cursor) INTO v_watermark FROM tombstone_export e WHERE e.tenant_id = p_tenant;
  IF NOT has_cleanup(p_tenant, p_owner, p_principal, p_token, p_epoch, v_now) OR v_watermark IS NULL THEN
    RETURN QUERY SELECT CASE WHEN has_cleanup(p_tenant, p_owner, p_principal, p_token, p_epoch, v_now) THEN 'NOT_EXPORTED'
                             ELSE 'LEASE_LOST' END, NULL::purge;
    RETURN;
  END IF;
  DELETE FROM purge_item i USING purge p WHERE i.tenant_id = p_tenant AND p.tenant_id = p_tenant AND p.number = i.number
    AND p.deadline_at <= v_now;
  SELECT coalesce(max(p.number), 0) + 1 INTO v_number FROM purge p WHERE p.tenant_id = p_tenant;
  INSERT INTO purge_item (tenant_id, number, cursor, task_id)
  SELECT p_tenant, v_number, t.cursor, t.task_id FROM tombstone t
  WHERE t.tenant_id = p_tenant AND t.cursor <= v_watermark AND t.removed_at <= v_now - p_retention_ms * interval '1 ms'
    AND NOT EXISTS (SELECT FROM hold h WHERE h.tenant_id = p_tenant AND h.task_id = t.task_id AND h.released_at IS NULL)
    AND NOT EXISTS (SELECT FROM purge_item i WHERE i.tenant_id = p_tenant AND i.cursor = t.cursor)
  ORDER BY t.cursor LIMIT p_limit;
  INSERT INTO purge (tenant_id, number, request_id, request_digest, state, prepared_by, prepared_at, deadline_at, tombstones,
                     first_cursor, last_cursor, watermark, fingerprint)
  SELECT p_tenant, v_number, p_request, p_digest, 'PENDING', p_principal, v_now, v_now + p_approval_ms * interval '1 ms',
         count(*), min(i.cursor), max(i.cursor), v_watermark,
         sha256(convert_to(string_agg(i.cursor || ' ' || i.task_id || E'\n', '' ORDER BY i.cursor), 'UTF8'))
  FROM purge_item i WHERE i.tenant_id = p_tenant AND i.number = v_number HAVING count(*) > 0
  RETURNING * INTO v_purge;
  RETURN QUERY SELECT CASE WHEN v_purge.number IS NULL THEN 'NOTHING_TO_PURGE' ELSE 'OK' END, v_purge;
END $$;

-- Takes the oldest purge that waits for a decision of somebody else than who prepared it, or the one that is named: OK with it
-- or, where there is none to take, without; PURGE_NOT_FOUND. Who holds it may take it again.
CREATE FUNCTION tenure.claim_purge(p_tenant text, p_number bigint, p_principal text, p_lease_ms bigint)
RETURNS TABLE (outcome text, purge purge) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE v_now timestamptz; v_purge purge;
BEGIN
  PERFORM 1 FROM tenant WHERE tenant_id = p_tenant FOR NO KEY UPDATE;
  v_now := task_now();
  UPDATE purge p SET reviewer = p_principal, claim_token = p.claim_token + 1,
    claim_expires_at = least(p.deadline_at, v_now + p_lease_ms * interval '1 ms')
  WHERE p.tenant_id = p_tenant AND p.number = (
    SELECT x.number FROM purge x
    WHERE x.tenant_id = p_tenant AND p_number IN (0, x.number) AND x.state = 'PENDING' AND x.deadline_at > v_now
      AND x.prepared_by <> p_principal
      AND (x.reviewer IS NULL OR x.claim_expires_at <= v_now OR x.reviewer = p_principal)
    ORDER BY x.number LIMIT 1)
  RETURNING * INTO v_purge;
  RETURN QUERY
  SELECT CASE WHEN p_number = 0 OR EXISTS (SELECT FROM purge x WHERE x.tenant_id = p_tenant AND x.number = p_number) THEN 'OK'
              ELSE 'PURGE_NOT_FOUND' END, v_purge;
END $$;

-- Decides a purge, once, under a claim, or directly with token 0: OK with the purge, also where the same principal decided the
-- same before; PURGE_NOT_FOUND, LEASE_LOST; DECIDED, EXPIRED or CLAIMED (by another) where it cannot be decided so; OWN where
-- who prepared it would approve it. Who prepared it may take it back.
CREATE FUNCTION tenure.decide_purge(p_tenant text, p_number bigint, p_claim bigint, p_principal text, p_rejection text)
RETURNS TABLE (outcome text, purge purge) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE v_now timestamptz; v_purge purge; v_claimed boolean; v_outcome text;
BEGIN
  PERFORM 1 FROM tenant WHERE tenant_id = p_tenant FOR NO KEY UPDATE;
  v_now := task_now();
  SELECT p.* INTO v_purge FROM purge p WHERE p.tenant_id = p_tenant AND p.number = p_number;
  v_claimed := coalesce(v_purge.claim_expires_at > v_now, false);
  v_outcome := CASE
    WHEN v_purge.number IS NULL THEN 'PURGE_NOT_FOUND'
    WHEN v_purge.decided_by = p_principal AND (v_purge.state = 'REJECTED') = (p_rejection IS NOT NULL) THEN 'OK'
    WHEN p_claim > 0 AND (v_purge.state <> 'PENDING' OR NOT v_claimed OR v_purge.claim_token <> p_claim
                          OR v_purge.reviewer <> p_principal) THEN 'LEASE_LOST'
    WHEN v_purge.state <> 'PENDING' THEN 'DECIDED'
    WHEN v_purge.deadline_at <= v_now THEN 'EXPIRED'
    WHEN p_claim = 0 AND v_claimed AND v_purge.reviewer <> p_principal THEN 'CLAIMED'
    WHEN p_rejection IS NULL AND v_purge.prepared_by = p_principal THEN 'OWN' END;
  IF v_outcome IS NULL THEN
    UPDATE purge p SET state = CASE WHEN p_rejection IS NULL THEN 'APPROVED' ELSE 'REJECTED' END, decided_by = p_principal,
      decided_at = v_now, rejection = p_rejection
    WHERE p.tenant_id = p_tenant AND p.number = p_number RETURNING * INTO v_purge;
    IF p_rejection IS NOT NULL THEN
      DELETE FROM purge_item i WHERE i.tenant_id = p_tenant AND i.number = p_number;
    END IF;
    v_outcome := 'OK';
  END IF;
  RETURN QUERY SELECT v_outcome, v_purge;
END $$;

-- Deletes the tombstones of a purge that was approved, all or none, and leaves the evidence: OK with it, also where it was
-- executed before; PURGE_NOT_FOUND, LEASE_LOST; NOT_APPROVED, EXPIRED, HELD or CHANGED where it cannot be.
CREATE FUNCTION tenure.execute_purge(
  p_tenant text, p_owner text, p_principal text, p_token bigint, p_epoch bigint, p_number bigint
) RETURNS TABLE (outcome text, evidence purge_evidence) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE v_now timestamptz; v_purge purge; v_outcome text; v_evidence purge_evidence; v_there int;
BEGIN
  PERFORM 1 FROM cleanup_lease WHERE tenant_id = p_tenant FOR NO KEY UPDATE;
  PERFORM 1 FROM tenant WHERE tenant_id = p_tenant FOR NO KEY UPDATE;
  v_now := task_now();
  SELECT e.* INTO v_evidence FROM purge_evidence e WHERE e.tenant_id = p_tenant AND e.number = p_number;
  IF FOUND THEN
    RETURN QUERY SELECT 'OK', v_evidence;
    RETURN;
  END IF;
  SELECT p.* INTO v_purge FROM purge p WHERE p.tenant_id = p_tenant AND p.number = p_number;
  v_outcome := CASE
    WHEN v_purge.number IS NULL THEN 'PURGE_NOT_FOUND'
    WHEN NOT has_cleanup(p_tenant, p_owner, p_principal, p_token, p_epoch, v_now) THEN 'LEASE_LOST'
    WHEN v_purge.state <> 'APPROVED' THEN 'NOT_APPROVED'
    WHEN v_purge.deadline_at <= v_now THEN 'EXPIRED'
    WHEN EXISTS (SELECT FROM purge_item i JOIN hold h ON h.tenant_id = p_tenant AND h.task_id = i.task_id
                 WHERE i.tenant_id = p_tenant AND i.number = p_number AND h.released_at IS NULL) THEN 'HELD' END;
  IF v_outcome IS NULL THEN
    SELECT count(*) INTO v_there FROM purge_item i
      JOIN tombstone t ON t.tenant_id = p_tenant AND t.cursor = i.cursor AND t.task_id = i.task_id
      WHERE i.tenant_id = p_tenant AND i.number = p_number;
    IF v_there <> v_purge.tombstones THEN v_outcome := 'CHANGED'; END IF;
  END IF;
  IF v_outcome IS NOT NULL THEN
    RETURN QUERY SELECT v_outcome, NULL::purge_evidence;
    RETURN;
  END IF;
  DELETE FROM tombstone t USING purge_item i
    WHERE t.tenant_id = p_tenant AND i.tenant_id = p_tenant AND i.number = p_number AND t.cursor = i.cursor;
  DELETE FROM purge_item i WHERE i.tenant_id = p_tenant AND i.number = p_number;
  UPDATE purge p SET state = 'EXECUTED' WHERE p.tenant_id = p_tenant AND p.number = p_number;
  INSERT INTO purge_evidence (tenant_id, number, prepared_by, prepared_at, approved_by, approved_at, executed_by, executed_at,
                              cleanup_token, tombstones, first_cursor, last_cursor, watermark, receipt, fingerprint)
  SELECT p_tenant, p_number, v_purge.prepared_by, v_purge.prepared_at, v_purge.decided_by, v_purge.decided_at, p_principal, v_now,
         p_token, v_purge.tombstones, v_purge.first_cursor, v_purge.last_cursor, v_purge.watermark, e.receipt,
         v_purge.fingerprint
  FROM tombstone_export e WHERE e.tenant_id = p_tenant AND e.through_cursor = v_purge.watermark
  RETURNING * INTO v_evidence;
  RETURN QUERY SELECT 'OK', v_evidence;
END $$;
