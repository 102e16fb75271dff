-- What of the tombstones is kept elsewhere.

-- Append only. That all tombstones up to a cursor are kept elsewhere; the highest is the watermark.
CREATE TABLE tenure.tombstone_export (
  tenant_id      text COLLATE "C" NOT NULL,
  through_cursor bigint NOT NULL CHECK (through_cursor > 0),
  receipt        text   NOT NULL,
  confirmed_by   text   NOT NULL,
  confirmed_at   timestamptz NOT NULL,
  PRIMARY KEY (tenant_id, through_cursor)
);
CREATE TRIGGER tombstone_export_stays BEFORE UPDATE ON tenure.tombstone_export
  FOR EACH STATEMENT EXECUTE FUNCTION tenure.refuse_change();

-- Notes that tombstones are kept elsewhere: OK with what was noted, also where it was noted before; EXPORT_CONFLICT below the
-- watermark or with another receipt; PAST where there are not so many. Cursors are given under the tenant's lock, which is
-- taken here: whoever writes tombstones has committed, or comes after this cursor.
CREATE FUNCTION tenure.confirm_export(p_tenant text, p_through bigint, p_receipt text, p_principal text)
RETURNS TABLE (outcome text, export tombstone_export) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE v_now timestamptz; v_last bigint; v_export tombstone_export;
BEGIN
  SELECT t.tombstones INTO v_last FROM tenant t WHERE t.tenant_id = p_tenant FOR NO KEY UPDATE;
  v_now := task_now();
  IF v_last IS NULL OR p_through > v_last THEN
    RETURN QUERY SELECT 'PAST', NULL::tombstone_export;
    RETURN;
  END IF;
  SELECT e.* INTO v_export FROM tombstone_export e WHERE e.tenant_id = p_tenant AND e.through_cursor >= p_through
    ORDER BY e.through_cursor LIMIT 1;
  IF NOT FOUND THEN
    INSERT INTO tombstone_export (tenant_id, through_cursor, receipt, confirmed_by, confirmed_at)
      VALUES (p_tenant, p_through, p_receipt, p_principal, v_now) RETURNING * INTO v_export;
  END IF;
  RETURN QUERY SELECT CASE WHEN (v_export.through_cursor, v_export.receipt) = (p_through, p_receipt) THEN 'OK'
                           ELSE 'EXPORT_CONFLICT' END, v_export;
END $$;

-- The next tenants, in the order of their ids, and whether they have tombstones that are not kept elsewhere yet.
CREATE FUNCTION tenure.list_unexported_tenants(p_after text, p_limit int)
RETURNS TABLE (tenant_id text, unexported boolean) LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
BEGIN
  RETURN QUERY
  SELECT t.tenant_id, t.tombstones > coalesce((
    SELECT e.through_cursor FROM tombstone_export e WHERE e.tenant_id = t.tenant_id ORDER BY e.through_cursor DESC LIMIT 1), 0)
  FROM tenant t WHERE t.tenant_id > p_after AND NOT EXISTS (SELECT FROM away a WHERE a.tenant_id = t.tenant_id)
  ORDER BY t.tenant_id LIMIT p_limit;
END $$;
