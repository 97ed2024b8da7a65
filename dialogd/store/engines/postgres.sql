-- What dialogd keeps in PostgreSQL 13 or later. `dialogd share` makes it where it is missing, or a person who may make
-- schemas: psql -1 -f postgres.sql. Its owner keeps the logs, and reads them all; everybody else who may connect reads
-- those in which they hold a seat, and writes by the functions alone. A log's random name is what lets a role in.

CREATE SCHEMA dialogd;

CREATE TABLE dialogd.seat (
    dialog text NOT NULL CHECK (dialog ~ '^[0-9a-f]{8,40}$'),
    id text NOT NULL,             -- an agent's, or USER
    role name,                    -- who may write for it; NULL: the first who comes with the log's name
    holder text,                  -- which machine runs its daemon
    until timestamptz,            -- and so long at least
    UNIQUE (dialog, id, role)     -- several people may speak as USER
);
CREATE UNIQUE INDEX ON dialogd.seat (dialog, id) WHERE id <> 'USER';

CREATE TABLE dialogd.entry (
    dialog text NOT NULL,
    at bigint NOT NULL,
    "end" bigint NOT NULL GENERATED ALWAYS AS (at + length(data)) STORED,
    seat text NOT NULL,
    data bytea NOT NULL CHECK (length(data) > 0),
    sha text NOT NULL,            -- SHA-256 of the log up to and with it
    signature text NOT NULL,
    names text[] NOT NULL,        -- of its attachments
    files bytea[] NOT NULL,
    who name NOT NULL DEFAULT session_user,
    written timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (dialog, "end"),
    UNIQUE (dialog, at)
);

ALTER TABLE dialogd.seat ENABLE ROW LEVEL SECURITY;
ALTER TABLE dialogd.entry ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON dialogd.seat FOR SELECT USING (role = session_user);
CREATE POLICY seated ON dialogd.entry FOR SELECT USING (
    EXISTS (SELECT FROM dialogd.seat s WHERE s.dialog = entry.dialog AND s.role = session_user)
);

-- Make a log with these seats, or add some to it: its founder alone may do that.
CREATE FUNCTION dialogd.found(log text, mine text[], others text[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '3s' AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('dialogd ' || log, 0));
    IF EXISTS (SELECT FROM dialogd.seat s WHERE s.dialog = log) AND NOT coalesce(
        (SELECT e.who = session_user FROM dialogd.entry e WHERE e.dialog = log AND e.at = 0),
        EXISTS (SELECT FROM dialogd.seat s WHERE s.dialog = log AND s.id = 'USER' AND s.role = session_user)
    ) THEN
        RAISE insufficient_privilege USING MESSAGE = format('the log %s was made by somebody else', log);
    END IF;
    UPDATE dialogd.seat s SET role = session_user, holder = NULL
        WHERE s.dialog = log AND s.id = ANY (mine) AND s.id <> 'USER' AND s.role IS DISTINCT FROM session_user;
    INSERT INTO dialogd.seat (dialog, id, role) SELECT log, unnest(mine), session_user ON CONFLICT DO NOTHING;
    INSERT INTO dialogd.seat (dialog, id) SELECT log, unnest(others) EXCEPT SELECT log, 'USER' ON CONFLICT DO NOTHING;
END $$;

-- Take what is free of these seats, and hold `daemon`, unless it is ''. Who holds one may speak as USER too: whose words
-- those are, their signature says.
CREATE FUNCTION dialogd.enter(log text, mine text[], daemon text, machine text, seconds float8) RETURNS float8
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '3s' AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM dialogd.seat s WHERE s.dialog = log) THEN
        RAISE undefined_object USING MESSAGE = format('there is no log %s in this database', log);
    END IF;
    UPDATE dialogd.seat s SET role = session_user WHERE s.dialog = log AND s.id = ANY (mine) AND s.role IS NULL;
    IF NOT EXISTS (SELECT FROM dialogd.seat s WHERE s.dialog = log AND s.role = session_user) THEN
        RAISE insufficient_privilege USING MESSAGE = format('%s holds no seat in the log %s', session_user, log);
    END IF;
    IF 'USER' = ANY (mine) THEN
        INSERT INTO dialogd.seat (dialog, id, role) VALUES (log, 'USER', session_user) ON CONFLICT DO NOTHING;
    END IF;
    RETURN CASE WHEN daemon = '' THEN 0 ELSE dialogd.hold(log, daemon, machine, seconds) END;
END $$;

-- Be the one machine where a seat's daemon runs, for so many seconds; 0 lets go. The seconds that another one has left.
CREATE FUNCTION dialogd.hold(log text, seat text, machine text, seconds float8) RETURNS float8
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '3s' AS $$
DECLARE
    known dialogd.seat;
BEGIN
    SELECT * INTO known FROM dialogd.seat s
        WHERE s.dialog = log AND s.id = hold.seat AND s.role = session_user FOR UPDATE;
    IF NOT FOUND THEN
        RAISE insufficient_privilege USING MESSAGE = format('%s may not write for %s in this log', session_user, seat);
    END IF;
    IF known.holder <> machine AND known.until > clock_timestamp() THEN
        RETURN extract(epoch FROM known.until - clock_timestamp());
    END IF;
    UPDATE dialogd.seat s SET holder = machine, until = clock_timestamp() + make_interval(secs => seconds)
        WHERE s.dialog = log AND s.id = hold.seat AND s.role = session_user;
    RETURN 0;
END $$;

-- Append a row if the log ends there, with that hash; false where it does not.
CREATE FUNCTION dialogd.append(
    log text, start bigint, before text, seat text, data bytea, sha text, signature text, names text[], files bytea[]
) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '3s' AS $$
DECLARE
    head record;
BEGIN
    IF NOT EXISTS (
        SELECT FROM dialogd.seat s WHERE s.dialog = log AND s.id = append.seat AND s.role = session_user
    ) THEN
        RAISE insufficient_privilege USING MESSAGE = format('%s may not write for %s in this log', session_user, seat);
    END IF;
    SELECT e."end", e.sha INTO head FROM dialogd.entry e WHERE e.dialog = log ORDER BY e."end" DESC LIMIT 1;
    IF start <> coalesce(head."end", 0) OR before <> coalesce(head.sha, encode(sha256(''), 'hex')) THEN
        RETURN false;
    END IF;
    INSERT INTO dialogd.entry (dialog, at, seat, data, sha, signature, names, files)
        VALUES (log, start, seat, data, sha, signature, names, files) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM pg_notify('dialogd_' || log, '');
    RETURN true;
END $$;

GRANT USAGE ON SCHEMA dialogd TO PUBLIC;
GRANT SELECT ON ALL TABLES IN SCHEMA dialogd TO PUBLIC;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA dialogd TO PUBLIC;
