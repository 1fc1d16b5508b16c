//! The process's log of errors, and the callbacks that hear of it.

use crate::{border::LogsCallback, process};
use cuda_abi::CudaError;
use cuda_client::error_log::{Dump, ErrorLog};
use locks::lock;
use std::{
    ffi::CString,
    sync::Mutex,
    time::{SystemTime, UNIX_EPOCH},
};

/// `CU_LOG_LEVEL_ERROR`.
const ERROR: u32 = 0;

static LOG: Mutex<Option<ErrorLog>> = Mutex::new(None);
static LISTENERS: Mutex<Listeners> = Mutex::new(Listeners { made: 0, known: Vec::new() });

struct Listeners {
    made: u64,
    known: Vec<(u64, LogsCallback, u64)>,
}

/// A call failed.
#[cold]
pub(crate) fn failed(symbol: &str, error: CudaError) {
    let name = error.name().and_then(|name| name.to_str().ok()).unwrap_or("an unknown error");
    let message = format!("Returning {} ({name}) from {symbol}", error.code());
    let line = format!("[{}][{}][CUDA][E] {message}", time_of_day(), process::thread_number());
    lock(&LOG).get_or_insert_default().push(line);
    // Not under the lock: a listener may call us.
    let listeners = lock(&LISTENERS).known.clone();
    if !listeners.is_empty()
        && let Ok(message) = CString::new(message)
    {
        listeners.iter().for_each(|(_, function, data)| function.call(*data, ERROR, &message));
    }
}

/// The number of the next line.
pub(crate) fn next() -> u32 {
    lock(&LOG).as_ref().map_or(0, ErrorLog::next)
}

/// The lines from `from`.
pub(crate) fn dump(from: Option<u32>, room: usize) -> Option<Dump> {
    lock(&LOG).get_or_insert_default().dump(from, room)
}

/// Tells `function` of every failure from now on.
pub(crate) fn listen(function: LogsCallback, user_data: u64) -> u64 {
    let mut listeners = lock(&LISTENERS);
    listeners.made += 1;
    let handle = listeners.made;
    listeners.known.push((handle, function, user_data));
    handle
}

/// Whether a listener was there and is no more.
pub(crate) fn stop_listening(handle: u64) -> bool {
    let mut listeners = lock(&LISTENERS);
    let before = listeners.known.len();
    listeners.known.retain(|(known, ..)| *known != handle);
    listeners.known.len() != before
}

/// Hours, minutes, seconds and milliseconds of the day, UTC.
fn time_of_day() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = now.as_secs() % 86_400;
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    format!("{hours:02}:{minutes:02}:{:02}.{:03}", seconds % 60, now.subsec_millis())
}
