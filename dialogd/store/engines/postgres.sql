-- What dialogd keeps in PostgreSQL. `dialogd share` makes it where it is missing, or somebody who may make schemas:
-- psql -1 -f postgres.sql URL. Its owner keeps the logs. Everybody else who may connect reads those in which they hold
-- a seat, and writes by the functions alone; what lets a role in is a log's random name.
CREATE SCHEMA dialogd;

CREATE TABLE dialogd.seat (
    dialog text NOT NULL,
    id text NOT NULL,             -- an agent's, or USER
    role name,                    -- who may write for it; NULL: the first who comes
    holder text,                  -- the machine that runs its daemon,
    until timestamptz,            -- so long at least
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

-- Whether the caller holds that seat; NULL is any.
CREATE FUNCTION dialogd.sits(log text, seat text) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT EXISTS (SELECT FROM dialogd.seat s
        WHERE s.dialog = log AND s.id = coalesce(sits.seat, s.id) AND s.role = session_user)
$$;

-- Take what is free, or new, of the seats `mine`, and hold `daemon`. With `others`, which are for whoever comes, a log
-- is made; its founder hands seats over so later. Who sits may speak as USER too: for whom, the signature says.
CREATE FUNCTION dialogd.enter(log text, mine text[], others text[], daemon text, machine text, seconds float8)
RETURNS float8 LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$ BEGIN
    IF NOT EXISTS (SELECT FROM dialogd.seat s WHERE s.dialog = log) THEN
        IF others IS NULL THEN
            RAISE undefined_object USING MESSAGE = format('there is no log %s', log);
        END IF;
        INSERT INTO dialogd.seat (dialog, id, role) SELECT log, unnest(mine), session_user;
        INSERT INTO dialogd.seat (dialog, id) SELECT log, unnest(others);
    ELSIF EXISTS (SELECT FROM dialogd.entry e WHERE e.dialog = log AND e.at = 0 AND e.who = session_user) THEN
        UPDATE dialogd.seat s SET role = CASE WHEN s.id = ANY (mine) THEN session_user END
            WHERE s.dialog = log AND s.id <> 'USER' AND s.id = ANY (mine || others) AND others IS NOT NULL;
        INSERT INTO dialogd.seat (dialog, id) SELECT log, unnest(others) ON CONFLICT DO NOTHING;
    END IF;
    UPDATE dialogd.seat s SET role = session_user WHERE s.dialog = log AND s.id = ANY (mine) AND s.role IS NULL;
    IF NOT dialogd.sits(log, NULL) THEN
        RAISE insufficient_privilege USING MESSAGE = format('%s holds no seat in the log %s', session_user, log);
    END IF;
    INSERT INTO dialogd.seat (dialog, id, role)
        SELECT log, unnest(mine || 'USER'::text), session_user ON CONFLICT DO NOTHING;
    RETURN dialogd.hold(log, daemon, machine, seconds);
END $$;

-- Be the one machine that runs a seat's daemon, for so many seconds. Those that another one has left; 0: it is held.
CREATE FUNCTION dialogd.hold(log text, seat text, machine text, seconds float8)
RETURNS float8 LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$ BEGIN
    IF seat <> '' AND NOT dialogd.sits(log, seat) THEN
        RAISE insufficient_privilege USING MESSAGE = format('%s may not write for %s in this log', session_user, seat);
    END IF;
    UPDATE dialogd.seat s SET holder = machine, until = clock_timestamp() + make_interval(secs => seconds)
        WHERE s.dialog = log AND s.id = hold.seat AND s.role = session_user
        AND (s.holder IS NULL OR s.holder = machine OR s.until < clock_timestamp());
    RETURN coalesce((SELECT extract(epoch FROM s.until - clock_timestamp()) FROM dialogd.seat s
        WHERE s.dialog = log AND s.id = hold.seat AND s.holder <> machine), 0);
END $$;

-- Append a row if the log ends at `start` with the hash `before`; false where it does not.
CREATE FUNCTION dialogd.append(log text, start bigint, before text, seat text, data bytea, sha text, signature text,
    names text[], files bytea[])
RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    head record;
BEGIN
    IF NOT dialogd.sits(log, seat) THEN
        RAISE insufficient_privilege USING MESSAGE = format('%s may not write for %s in this log', session_user, seat);
    END IF;
    SELECT e."end", e.sha INTO head FROM dialogd.entry e WHERE e.dialog = log ORDER BY e."end" DESC LIMIT 1;
    IF (start, before) = (coalesce(head."end", 0), coalesce(head.sha, encode(sha256(''), 'hex'))) THEN
        INSERT INTO dialogd.entry (dialog, at, seat, data, sha, signature, names, files)
            VALUES (log, start, seat, data, sha, signature, names, files) ON CONFLICT DO NOTHING;
        IF FOUND THEN
            PERFORM pg_notify('dialogd_' || log, '');
            RETURN true;
        END IF;
    END IF;
    RETURN false;
END $$;

ALTER TABLE dialogd.seat ENABLE ROW LEVEL SECURITY;
ALTER TABLE dialogd.entry ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON dialogd.seat FOR SELECT USING (role = session_user);
CREATE POLICY seated ON dialogd.entry FOR SELECT USING (dialogd.sits(dialog, NULL));
GRANT USAGE ON SCHEMA dialogd TO PUBLIC;
GRANT SELECT ON ALL TABLES IN SCHEMA dialogd TO PUBLIC;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA dialogd TO PUBLIC;
