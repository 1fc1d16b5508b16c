//! Connections that only read. They are lent out and come back.

use std::ops::Deref;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use rusqlite::Connection;

use super::schema;

/// Idle connections to keep; more threads than this seldom read at once.
const IDLE_MAX: usize = 4;

pub(super) struct Readers {
    path: PathBuf,
    idle: Mutex<Vec<Connection>>,
}

impl Readers {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, idle: Mutex::default() }
    }

    pub(super) fn take(self: &Arc<Self>) -> rusqlite::Result<Reader> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let connection = idle.map_or_else(|| schema::connect(&self.path), Ok)?;
        Ok(Reader { connection: Some(connection), home: self.clone() })
    }
}

/// A borrowed connection, outside of any transaction when it was taken.
pub(super) struct Reader {
    connection: Option<Connection>,
    home: Arc<Readers>,
}

impl Deref for Reader {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        self.connection.as_ref().expect("taken only when dropped")
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let Some(connection) = self.connection.take() else { return };
        // A listing leaves its snapshot open.
        let is_clean = connection.is_autocommit() || connection.execute_batch("ROLLBACK").is_ok();
        let mut idle = self.home.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if is_clean && idle.len() < IDLE_MAX {
            idle.push(connection);
        }
    }
}
