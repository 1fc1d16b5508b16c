//! The terminal while `dxpu top` has it: another screen, keys as they are pressed, and everything back at the end.

use anyhow::Context;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcsetattr};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The key that the user pressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Quit,
    Up,
    Down,
    PageUp,
    PageDown,
    Letter(char),
    /// A signal woke us; most likely the window has another size.
    Resized,
}

pub(super) struct Screen {
    before: Termios,
    /// Pressed and not looked at yet: fast fingers and slow networks bring several keys at once.
    pressed: Vec<u8>,
    is_over: Arc<AtomicBool>,
}

impl Screen {
    pub(super) fn take() -> anyhow::Result<Self> {
        let is_over = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, is_over.clone()).context("signals")?;
        }
        let before = tcgetattr(std::io::stdin()).context("the terminal does not say how it is set")?;
        let mut keys = before.clone();
        keys.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
        keys.special_codes[SpecialCodeIndex::VMIN] = 0;
        keys.special_codes[SpecialCodeIndex::VTIME] = 0;
        tcsetattr(std::io::stdin(), OptionalActions::Now, &keys).context("the terminal cannot be set")?;
        let screen = Self { before, pressed: Vec::new(), is_over };
        // A terminal that is narrower than a line of identifiers cuts the line off instead of wrapping it (7).
        write("\x1b[?1049h\x1b[?25l\x1b[?7l")?;
        Ok(screen)
    }

    /// Line over line, so that nothing flickers.
    pub(super) fn draw(&mut self, lines: &[String]) -> anyhow::Result<()> {
        let mut text = String::from("\x1b[H");
        for (index, line) in lines.iter().enumerate() {
            if index > 0 {
                text.push_str("\r\n");
            }
            text.push_str(line);
            text.push_str("\x1b[K");
        }
        text.push_str("\x1b[J");
        write(&text)
    }

    /// The next key, if one comes in time.
    pub(super) fn key(&mut self, wait: Duration) -> anyhow::Result<Option<Key>> {
        let until = Instant::now() + wait;
        loop {
            if self.is_over.load(Ordering::Relaxed) {
                return Ok(Some(Key::Quit));
            }
            if let Some(key) = first_key(&mut self.pressed) {
                return Ok(Some(key));
            }
            let left = until.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).context("that is too long to wait")?;
            let input = std::io::stdin();
            match poll(&mut [PollFd::new(&input, PollFlags::IN)], Some(&left)) {
                Ok(0) => return Ok(None),
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) if self.is_over.load(Ordering::Relaxed) => continue,
                Err(rustix::io::Errno::INTR) => return Ok(Some(Key::Resized)),
                Err(error) => return Err(error).context("cannot wait for a key"),
            }
            let mut pressed = [0; 16];
            let count = input.lock().read(&mut pressed).context("cannot read a key")?;
            if count == 0 {
                return Ok(Some(Key::Quit));
            }
            self.pressed.extend_from_slice(&pressed[..count]);
        }
    }
}

/// Takes keys from the front until one means something.
fn first_key(pressed: &mut Vec<u8>) -> Option<Key> {
    while !pressed.is_empty() {
        let length = match &pressed[..] {
            // A sequence ends with its first letter or tilde.
            [0x1b, b'[' | b'O', rest @ ..] => {
                let ends = |byte: &u8| byte.is_ascii_alphabetic() || *byte == b'~';
                2 + rest.iter().position(ends).map_or(rest.len(), |end| end + 1)
            }
            _ => 1,
        };
        let key: Vec<u8> = pressed.drain(..length).collect();
        if let Some(key) = meaning(&key) {
            return Some(key);
        }
    }
    None
}

fn meaning(pressed: &[u8]) -> Option<Key> {
    match pressed {
        b"q" | b"Q" | b"\x1b" | b"\x03" => Some(Key::Quit),
        b"\x1b[A" | b"\x1bOA" | b"k" => Some(Key::Up),
        b"\x1b[B" | b"\x1bOB" | b"j" => Some(Key::Down),
        b"\x1b[5~" => Some(Key::PageUp),
        b"\x1b[6~" | b" " => Some(Key::PageDown),
        [letter] if letter.is_ascii_alphabetic() => Some(Key::Letter(letter.to_ascii_lowercase() as char)),
        _ => None,
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing put back.
        let _ = write("\x1b[?7h\x1b[?25h\x1b[?1049l");
        let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &self.before);
    }
}

fn write(text: &str) -> anyhow::Result<()> {
    let mut output = std::io::stdout().lock();
    output.write_all(text.as_bytes()).and_then(|()| output.flush()).context("cannot write to the terminal")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_come_together_are_taken_one_by_one() {
        let mut pressed = b"u\x1b[A?\x1b[6~q".to_vec();
        let keys: Vec<Key> = std::iter::from_fn(|| first_key(&mut pressed)).collect();
        assert_eq!(keys, [Key::Letter('u'), Key::Up, Key::PageDown, Key::Quit]);
    }

    #[test]
    fn keys_mean_what_they_do_elsewhere() {
        assert_eq!(meaning(b"q"), Some(Key::Quit));
        assert_eq!(meaning(b"\x1b[A"), Some(Key::Up));
        assert_eq!(meaning(b"\x1b[6~"), Some(Key::PageDown));
        assert_eq!(meaning(b"U"), Some(Key::Letter('u')));
        assert_eq!(meaning(b"\x1b[99~"), None);
    }
}
