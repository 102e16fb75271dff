-- What a run's own database keeps of every accepted write, in the order of its locks. Only runs of tests/robustness have it.
CREATE SCHEMA robustness;

-- Each version of each task's state. `seq` is taken while the row is locked: it is the order in which one task changed, and, as
-- claims and ends hold the tenant, the order in which one tenant's tasks were taken and ended.
CREATE TABLE robustness.version (
  seq bigserial PRIMARY KEY, at bigint NOT NULL, tenant text, task uuid, op "char", state text, token bigint, worker text,
  expires bigint, change bigint, checkpoints int, lines int, wished boolean, changed bigint, finish_token bigint, failed_for text,
  attempts int, crashes int, waits text, held boolean
);
-- Each write that only a lease allows, beside the lease as it stood.
CREATE TABLE robustness.write (
  seq bigserial PRIMARY KEY, at bigint NOT NULL, tenant text, task uuid, kind text, revision bigint, token bigint, written bigint,
  state text, current_token bigint, expires bigint
);
CREATE TABLE robustness.signal (seq bigserial PRIMARY KEY, at bigint NOT NULL, tenant text, signal text, task uuid, op "char", state text);
-- Each wait that a signal ended.
CREATE TABLE robustness.wake (seq bigserial PRIMARY KEY, at bigint NOT NULL, tenant text, task uuid, signal text);
-- Each tombstone that came or went; whether its task was held, and whether it was kept elsewhere, by then.
CREATE TABLE robustness.stone (
  seq bigserial PRIMARY KEY, at bigint NOT NULL, tenant text, task uuid, cursor bigint, op "char", held boolean, exported boolean
);
-- What may never be, seen in the very statement.
CREATE TABLE robustness.breach (seq bigserial PRIMARY KEY, at bigint NOT NULL, what text NOT NULL);

CREATE FUNCTION robustness.us(timestamptz) RETURNS bigint LANGUAGE sql IMMUTABLE AS
  'SELECT (extract(epoch FROM $1) * 1000000)::bigint';

CREATE FUNCTION robustness.on_state() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = robustness, pg_temp AS $$
DECLARE s tenure.task_state := CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
BEGIN
  INSERT INTO version (at, tenant, task, op, state, token, worker, expires, change, checkpoints, lines, wished, changed,
                       finish_token, failed_for, attempts, crashes, waits, held)
  VALUES (us(clock_timestamp()), s.tenant_id, s.task_id, left(TG_OP, 1), s.state, s.token, s.worker_id, us(s.expires_at), s.change,
          s.checkpoints, s.lines, s.cancel_requested_at IS NOT NULL, us(s.changed_at), s.finish_token, s.failed_for, s.attempts,
          s.crashes, (SELECT w.kind FROM tenure.wait w WHERE w.tenant_id = s.tenant_id AND w.task_id = s.task_id AND w.wake IS NULL), s.held);
  RETURN NULL;
END $$;
CREATE TRIGGER robustness AFTER INSERT OR UPDATE OR DELETE ON tenure.task_state FOR EACH ROW EXECUTE FUNCTION robustness.on_state();

CREATE FUNCTION robustness.on_checkpoint() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = robustness, pg_temp AS $$
BEGIN
  INSERT INTO write (at, tenant, task, kind, revision, token, written, state, current_token, expires)
  SELECT us(clock_timestamp()), NEW.tenant_id, NEW.task_id, 'checkpoint', NEW.revision, NEW.token, us(NEW.created_at), s.state, s.token,
         us(s.expires_at)
  FROM tenure.task_state s WHERE s.tenant_id = NEW.tenant_id AND s.task_id = NEW.task_id;
  RETURN NULL;
END $$;
CREATE TRIGGER robustness AFTER INSERT ON tenure.checkpoint FOR EACH ROW EXECUTE FUNCTION robustness.on_checkpoint();

CREATE FUNCTION robustness.on_signal() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = robustness, pg_temp AS $$
DECLARE s tenure.signal := CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
BEGIN
  INSERT INTO signal (at, tenant, signal, task, op, state)
  VALUES (us(clock_timestamp()), s.tenant_id, s.signal_id, s.task_id, left(TG_OP, 1), s.state);
  RETURN NULL;
END $$;
CREATE TRIGGER robustness AFTER INSERT OR UPDATE OR DELETE ON tenure.signal FOR EACH ROW EXECUTE FUNCTION robustness.on_signal();

CREATE FUNCTION robustness.on_wait() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = robustness, pg_temp AS $$
BEGIN
  INSERT INTO wake (at, tenant, task, signal) VALUES (us(clock_timestamp()), NEW.tenant_id, NEW.task_id, NEW.signal_id);
  RETURN NULL;
END $$;
CREATE TRIGGER robustness AFTER INSERT ON tenure.wait FOR EACH ROW WHEN (NEW.wake = 'SIGNAL') EXECUTE FUNCTION robustness.on_wait();
CREATE TRIGGER robustness_too AFTER UPDATE ON tenure.wait FOR EACH ROW
  WHEN (NEW.wake = 'SIGNAL' AND (OLD.wake IS DISTINCT FROM NEW.wake OR OLD.token <> NEW.token)) EXECUTE FUNCTION robustness.on_wait();

CREATE FUNCTION robustness.on_stone() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = robustness, pg_temp AS $$
DECLARE s tenure.tombstone := CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
BEGIN
  INSERT INTO stone (at, tenant, task, cursor, op, held, exported)
  VALUES (us(clock_timestamp()), s.tenant_id, s.task_id, s.cursor, left(TG_OP, 1),
          EXISTS (SELECT FROM tenure.hold h WHERE h.tenant_id = s.tenant_id AND h.task_id = s.task_id AND h.released_at IS NULL),
          EXISTS (SELECT FROM tenure.tombstone_export e WHERE e.tenant_id = s.tenant_id AND e.through_cursor >= s.cursor));
  RETURN NULL;
END $$;
CREATE TRIGGER robustness AFTER INSERT OR DELETE ON tenure.tombstone FOR EACH ROW EXECUTE FUNCTION robustness.on_stone();

CREATE FUNCTION robustness.on_tenant() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = robustness, pg_temp AS $$
BEGIN
  IF NEW.leased > NEW.max_leased AND NEW.leased > OLD.leased THEN
    INSERT INTO breach (at, what) VALUES (us(clock_timestamp()), format('S3 %s leased %s of %s', NEW.tenant_id, NEW.leased, NEW.max_leased));
  END IF;
  IF NEW.outstanding > NEW.max_outstanding AND NEW.outstanding > OLD.outstanding THEN
    INSERT INTO breach (at, what)
      VALUES (us(clock_timestamp()), format('S3 %s outstanding %s of %s', NEW.tenant_id, NEW.outstanding, NEW.max_outstanding));
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER robustness AFTER UPDATE ON tenure.tenant FOR EACH ROW EXECUTE FUNCTION robustness.on_tenant();

CREATE FUNCTION robustness.on_budget() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = robustness, pg_temp AS $$
BEGIN
  IF EXISTS (SELECT FROM unnest(NEW.limits, NEW.committed, NEW.reserved) x(l, c, r) WHERE c + r > l) THEN
    INSERT INTO breach (at, what) VALUES (us(clock_timestamp()),
      format('S13 %s committed %s and reserved %s of %s', NEW.tenant_id, NEW.committed, NEW.reserved, NEW.limits));
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER robustness AFTER INSERT OR UPDATE ON tenure.budget FOR EACH ROW EXECUTE FUNCTION robustness.on_budget();

-- In a run no day passes: what is over in tenants that say so is removed at once.
ALTER TABLE tenure.tenant DROP CONSTRAINT tenant_retention_ms_check;
