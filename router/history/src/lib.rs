//! Keeps conversations in an SQLite database, by owners. [`Database`] is the [`History`] of a server with
//! `--history-path`; nothing else reads the file. Begin with [`Database::change`].

mod search;

use std::fs::{DirBuilder, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rusqlite::{Connection, OpenFlags, OptionalExtension, Row, Transaction, TransactionBehavior, params};
use trunkline_api::history::{Change, Conversation, History, Listed, Mode, Page, Selection, StoreError};

const FILE: &str = "history.sqlite3";
/// The version of the tables, which `PRAGMA user_version` has.
const VERSION: i64 = 1;
/// What a conversation or a turn counts besides its text: its row, and its entry in an index.
const ROW_BYTES: u64 = 128;
/// The longest wait for another router that writes to the same file, as the one that a reload replaces may.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// `octet_length` is the number of bytes of a text; `length` counts characters.
const TABLES: &str = "
    CREATE TABLE owners (
        owner TEXT PRIMARY KEY, version INTEGER NOT NULL, bytes INTEGER NOT NULL
    ) WITHOUT ROWID, STRICT;
    CREATE TABLE conversations (
        owner TEXT NOT NULL, id TEXT NOT NULL, title TEXT NOT NULL, details TEXT NOT NULL,
        created INTEGER NOT NULL, updated INTEGER NOT NULL, bytes INTEGER NOT NULL,
        PRIMARY KEY (owner, id)
    ) STRICT;
    CREATE INDEX by_time ON conversations (owner, updated DESC, id);
    CREATE TABLE turns (
        owner TEXT NOT NULL, conversation TEXT NOT NULL, id TEXT NOT NULL, body TEXT NOT NULL,
        PRIMARY KEY (owner, conversation, id)
    ) STRICT;
    PRAGMA user_version = 1;
";

/// Why a database cannot be used. The text is for the user who started the server.
#[derive(Debug)]
pub enum OpenError {
    Folder(PathBuf, io::Error),
    File(PathBuf, rusqlite::Error),
    /// The version of the tables.
    TooNew(PathBuf, i64),
}

impl std::fmt::Display for OpenError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Folder(path, error) => write!(f, "cannot write to `{}`: {error}", path.display()),
            Self::File(path, error) => {
                let path = path.display();
                write!(
                    f,
                    "cannot open `{path}`: {error}; hint: move the file away to begin with an empty history"
                )
            }
            Self::TooNew(path, version) => write!(
                f,
                "cannot read `{}`: a newer Trunkline wrote it (version {version}, this one reads {VERSION})",
                path.display()
            ),
        }
    }
}

/// The database of a folder.
#[derive(Debug)]
pub struct Database {
    path: PathBuf,
    writer: Mutex<Connection>,
    /// Connections for readers, who need not wait for the writer. There are as many as were ever in use at once.
    readers: Mutex<Vec<Connection>>,
    max_bytes_of_owner: u64,
}

impl Database {
    /// Opens the database in this folder, or creates it, so that only the user of this process may read it.
    pub fn open(folder: &Path, max_bytes_of_owner: u64) -> Result<Self, OpenError> {
        let path = folder.join(FILE);
        let in_folder = |error| OpenError::Folder(folder.to_owned(), error);
        DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(in_folder)?;
        // SQLite gives its other files the mode of this one.
        let mut options = OpenOptions::new();
        options.create(true).append(true).mode(0o600).open(&path).map_err(in_folder)?;
        let in_file = |error| OpenError::File(path.clone(), error);
        let mut writer = connect(&path).map_err(in_file)?;
        // What was deleted must not be found in the file.
        writer.pragma_update(None, "secure_delete", "ON").map_err(in_file)?;
        let transaction =
            writer.transaction_with_behavior(TransactionBehavior::Immediate).map_err(in_file)?;
        let version =
            transaction.pragma_query_value(None, "user_version", |row| row.get(0)).map_err(in_file)?;
        match version {
            0 => transaction.execute_batch(TABLES).map_err(in_file)?,
            VERSION => {}
            newer => return Err(OpenError::TooNew(path, newer)),
        }
        transaction.commit().map_err(in_file)?;
        Ok(Self { path, writer: Mutex::new(writer), readers: Mutex::default(), max_bytes_of_owner })
    }

    fn read<T>(&self, read: impl FnOnce(&Transaction<'_>) -> Result<T, StoreError>) -> Result<T, StoreError> {
        let idle = lock(&self.readers).pop();
        let mut connection = idle.map_or_else(|| connect(&self.path), Ok).map_err(failed)?;
        // All of an answer is of one moment.
        let done = read(&connection.transaction().map_err(failed)?)?;
        lock(&self.readers).push(connection);
        Ok(done)
    }

    /// Makes a change of an owner's conversations, and notes by how many bytes they grew.
    fn write<T>(
        &self,
        owner: &str,
        change: impl FnOnce(&Transaction<'_>) -> Result<(T, i64), StoreError>,
    ) -> Result<T, StoreError> {
        let mut connection = lock(&self.writer);
        let transaction =
            connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
        let (done, growth) = change(&transaction)?;
        let bytes: i64 = transaction
            .query_row(
                "INSERT INTO owners VALUES (?1, 1, ?2)
                 ON CONFLICT DO UPDATE SET version = version + 1, bytes = bytes + ?2 RETURNING bytes",
                params![owner, growth],
                |row| row.get(0),
            )
            .map_err(failed)?;
        if growth > 0 && bytes.unsigned_abs() > self.max_bytes_of_owner {
            return Err(StoreError::Full { limit: self.max_bytes_of_owner });
        }
        transaction.commit().map_err(failed)?;
        Ok(done)
    }
}

fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    // A crash of the process loses nothing; one of the machine may lose the last changes, but no older ones.
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    Ok(connection)
}

/// No panic can leave a connection half changed: an open transaction is rolled back when it is dropped.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[expect(clippy::needless_pass_by_value, reason = "it is given to `map_err`")]
fn failed(error: rusqlite::Error) -> StoreError {
    StoreError::Failed(error.to_string())
}

impl History for Database {
    fn version(&self, owner: &str) -> Result<u64, StoreError> {
        self.read(|transaction| {
            let version =
                transaction.query_row("SELECT version FROM owners WHERE owner = ?1", [owner], |row| {
                    row.get::<_, i64>(0)
                });
            Ok(version.optional().map_err(failed)?.unwrap_or(0).unsigned_abs())
        })
    }

    fn list(&self, owner: &str, selection: &Selection) -> Result<Page, StoreError> {
        self.read(|transaction| {
            let found = search::find(transaction, owner, &selection.words)?;
            let after = match &selection.after {
                None => (i64::MAX, String::new()),
                Some(id) => (listed(transaction, owner, id)?.updated.cast_signed(), id.clone()),
            };
            let mut statement = transaction
                .prepare_cached(
                    "SELECT id, title, created, updated, bytes FROM conversations
                     WHERE owner = ?1 AND (updated < ?2 OR (updated = ?2 AND id > ?3))
                     ORDER BY updated DESC, id",
                )
                .map_err(failed)?;
            let rows = statement.query_map(params![owner, after.0, after.1], read_listed).map_err(failed)?;
            let mut page = Page { listed: Vec::new(), has_more: false };
            for row in rows {
                let row = row.map_err(failed)?;
                if found.as_ref().is_some_and(|found| !found.contains(&row.id)) {
                    continue;
                }
                if page.listed.len() == selection.limit {
                    page.has_more = true;
                    break;
                }
                page.listed.push(row);
            }
            Ok(page)
        })
    }

    fn num_bytes(&self, owner: &str, id: &str) -> Result<u64, StoreError> {
        self.read(|transaction| Ok(listed(transaction, owner, id)?.num_bytes))
    }

    fn get(&self, owner: &str, id: &str) -> Result<Conversation, StoreError> {
        self.read(|transaction| {
            let listed = listed(transaction, owner, id)?;
            let details = transaction
                .query_row(
                    "SELECT details FROM conversations WHERE owner = ?1 AND id = ?2",
                    [owner, id],
                    |row| row.get(0),
                )
                .map_err(failed)?;
            let mut statement = transaction
                .prepare_cached(
                    "SELECT id, body FROM turns WHERE owner = ?1 AND conversation = ?2 ORDER BY id",
                )
                .map_err(failed)?;
            let turns =
                statement.query_map([owner, id], |row| Ok((row.get(0)?, row.get(1)?))).map_err(failed)?;
            Ok(Conversation { listed, details, turns: turns.collect::<Result<_, _>>().map_err(failed)? })
        })
    }

    fn change(&self, owner: &str, id: &str, mode: Mode, change: &Change) -> Result<Listed, StoreError> {
        self.write(owner, |transaction| {
            let before = match listed(transaction, owner, id) {
                Err(StoreError::Unknown) if mode == Mode::Replace => None,
                before => Some(before?),
            };
            if mode == Mode::Replace {
                forget_turns(transaction, owner, id).map_err(failed)?;
            }
            for (turn, body) in &change.turns {
                write_turn(transaction, [owner, id, turn], body.as_deref()).map_err(failed)?;
            }
            let now = unix_ms().cast_signed();
            let changed: Listed = transaction
                .query_row(
                    "INSERT INTO conversations VALUES (
                        ?1, ?2, ifnull(?3, ''), ifnull(?4, '{}'), ?5, ?5, 0
                     )
                     ON CONFLICT DO UPDATE SET
                        title = ifnull(?3, iif(?6, '', title)), details = ifnull(?4, iif(?6, '{}', details)),
                        updated = max(updated + 1, ?5)
                     RETURNING id, title, created, updated, bytes",
                    params![owner, id, change.title, change.details, now, mode == Mode::Replace],
                    read_listed,
                )
                .map_err(failed)?;
            let num_bytes: i64 = transaction
                .query_row(
                    "UPDATE conversations SET bytes = ?3 + octet_length(title) + octet_length(details) + (
                        SELECT ifnull(sum(octet_length(id) + octet_length(body) + ?3), 0) FROM turns
                        WHERE owner = ?1 AND conversation = ?2
                     )
                     WHERE owner = ?1 AND id = ?2 RETURNING bytes",
                    params![owner, id, ROW_BYTES.cast_signed()],
                    |row| row.get(0),
                )
                .map_err(failed)?;
            let before = before.map_or(0, |before| before.num_bytes.cast_signed());
            Ok((Listed { num_bytes: num_bytes.unsigned_abs(), ..changed }, num_bytes - before))
        })
    }

    fn remove(&self, owner: &str, id: &str) -> Result<(), StoreError> {
        self.write(owner, |transaction| {
            let before = listed(transaction, owner, id)?;
            forget_turns(transaction, owner, id).map_err(failed)?;
            transaction
                .execute("DELETE FROM conversations WHERE owner = ?1 AND id = ?2", [owner, id])
                .map_err(failed)?;
            Ok(((), -before.num_bytes.cast_signed()))
        })
    }
}

/// Returns a conversation without its parts.
fn listed(transaction: &Transaction<'_>, owner: &str, id: &str) -> Result<Listed, StoreError> {
    let found = transaction.query_row(
        "SELECT id, title, created, updated, bytes FROM conversations WHERE owner = ?1 AND id = ?2",
        [owner, id],
        read_listed,
    );
    found.optional().map_err(failed)?.ok_or(StoreError::Unknown)
}

fn read_listed(row: &Row<'_>) -> rusqlite::Result<Listed> {
    let number = |place| row.get::<_, i64>(place).map(i64::unsigned_abs);
    Ok(Listed {
        id: row.get(0)?,
        title: row.get(1)?,
        created: number(2)?,
        updated: number(3)?,
        num_bytes: number(4)?,
    })
}

fn forget_turns(transaction: &Transaction<'_>, owner: &str, id: &str) -> rusqlite::Result<usize> {
    transaction.execute("DELETE FROM turns WHERE owner = ?1 AND conversation = ?2", [owner, id])
}

/// Writes a turn, or removes it. The key is owner, conversation and turn.
fn write_turn(transaction: &Transaction<'_>, key: [&str; 3], body: Option<&str>) -> rusqlite::Result<usize> {
    let [owner, id, turn] = key;
    match body {
        Some(body) => transaction
            .prepare_cached("INSERT OR REPLACE INTO turns VALUES (?1, ?2, ?3, ?4)")?
            .execute([owner, id, turn, body]),
        None => {
            transaction.execute("DELETE FROM turns WHERE owner = ?1 AND conversation = ?2 AND id = ?3", key)
        }
    }
}

fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}
