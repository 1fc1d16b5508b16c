//! Which process is which, and a clock that all of them share.

use sharing::{Life, Owner};
use std::{io, path::Path};

/// Nanoseconds on a clock that all processes of a machine share. Never 0.
pub fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(u64::try_from(now.tv_nsec).unwrap_or(0)).max(1)
}

/// This process, as the owner of a slot.
pub fn this_process() -> io::Result<Owner> {
    let pid = std::process::id();
    let start = start_ticks(pid)?.ok_or(io::ErrorKind::NotFound)?;
    Owner::new(pid, start).map_err(io::Error::other)
}

/// Has this thread's short sleeps end on time. By default the kernel may add 50 us to each, so that it wakes threads together; a
/// sleep of 50 us then takes twice as long. Where the kernel does not allow it, nothing changes.
pub fn sleep_on_time() {
    let Ok(thread) = std::fs::read_link("/proc/thread-self") else { return };
    if let Some(number) = thread.file_name() {
        let _ = std::fs::write(Path::new("/proc").join(number).join("timerslack_ns"), "1");
    }
}

/// Whether the owner of a slot lives.
pub fn life(owner: Owner) -> Life {
    match start_ticks(owner.pid()) {
        Ok(found) => owner.life(found),
        // /proc cannot be read. What the owner does decides.
        Err(_) => Life::Unknown,
    }
}

/// When the process with this number started, in ticks since the machine started; `None`: there is none, or it is a
/// zombie, which executes nothing any more.
pub fn start_ticks(pid: u32) -> io::Result<Option<u64>> {
    let text = match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(text) => text,
        // A process that goes while it is read answers ESRCH.
        Err(error)
            if error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH) =>
        {
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    parse_stat(&text).ok_or(io::ErrorKind::InvalidData.into())
}

/// The fields behind the program's name, which is in brackets and may hold anything: state is the first, the start time
/// the twentieth.
fn parse_stat(text: &str) -> Option<Option<u64>> {
    let (_, fields) = text.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace();
    let state = fields.next()?;
    let start = fields.nth(18)?.parse().ok()?;
    Some((!matches!(state, "Z" | "X")).then_some(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_time_is_found_whatever_the_program_is_called() {
        let stat = |name: &str, state: &str| {
            format!("77 ({name}) {state} 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4242 20 21")
        };
        assert_eq!(parse_stat(&stat("a) R 1 (b", "S")), Some(Some(4242)));
        assert_eq!(parse_stat(&stat("gone", "Z")), Some(None), "a zombie executes nothing");
        assert_eq!(parse_stat("77 (short) S 1"), None);
    }

    #[test]
    fn sleeps_of_a_thread_that_asked_for_it_end_on_time() {
        let slack = std::thread::spawn(|| {
            sleep_on_time();
            let thread = std::fs::read_link("/proc/thread-self").unwrap();
            std::fs::read_to_string(
                Path::new("/proc").join(thread.file_name().unwrap()).join("timerslack_ns"),
            )
        });
        // A kernel without the file has no slack to change.
        assert!(slack.join().unwrap().map_or(true, |slack| slack.trim() == "1"));
    }

    #[test]
    fn this_process_lives_and_one_with_another_start_time_does_not() {
        let own = this_process().unwrap();
        assert_eq!(life(own), Life::Alive);
        let earlier = Owner::new(own.pid(), own.start_ticks().saturating_sub(1)).unwrap();
        assert_eq!(life(earlier), Life::Dead);
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        child.wait().unwrap();
        assert_eq!(life(Owner::new(pid, 1).unwrap()), Life::Dead);
        let (before, after) = (now_ns(), now_ns());
        assert!(0 < before && before <= after);
    }
}
