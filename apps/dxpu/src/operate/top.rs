//! `dxpu top`: every GPU of the pool, live.

mod picture;
mod screen;

use super::ask;
use super::list::{Format, print};
use crate::support::exit::{Exit, Outcome};
use crate::support::paint::Paper;
use crate::support::pool_access::{PoolAccess, failure};
use crate::support::quantity;
use picture::{Order, Picture, View};
use pool_client::{Client, ClientError, Patience};
use screen::{Key, Screen};
use std::io::IsTerminal;
use std::time::{Duration, Instant};

const EXAMPLES: &str = "\
Keys: q quits; u, m, t, l, s and g order by utilisation, memory, temperature, lease, state and GPU (again: the other way
round); arrows, page up and page down move.

Examples:
  dxpu top
  dxpu top --order util --interval 500ms
  dxpu top --once | head              once, as text; so it is too when nobody looks at a terminal
  dxpu top --once -o json             everything it shows, for a program";

/// Show every GPU of the pool, live
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Top {
    /// Show it once
    #[arg(long)]
    once: bool,
    /// How often to look
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = quantity::duration)]
    interval: Duration,
    /// Which come first
    #[arg(long, value_enum, default_value = "gpu")]
    order: Order,
    /// How to show it with --once
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value = "table")]
    output: Format,
    #[command(flatten)]
    access: PoolAccess,
}

/// Less would only heat the manager.
const INTERVAL_MIN: Duration = Duration::from_millis(100);

impl Top {
    pub(crate) fn run(self) -> Outcome {
        let is_live = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
        if self.once || !matches!(self.output, Format::Table | Format::Wide) || !is_live {
            let picture = fetch(&self.access.client()?).map_err(failure)?;
            let text = match self.output.of(&picture, false)? {
                Some(text) => text,
                None => {
                    let paper = Paper { height: None, ..Paper::stdout() };
                    picture.lines(&View { order: self.order, ..View::default() }, paper).join("\n") + "\n"
                }
            };
            print(&text)?;
            return Ok(Exit::Success);
        }
        self.live()
    }

    fn live(self) -> Outcome {
        let client = self.access.patient(Patience::ONCE)?;
        // Before the screen is taken, so that a pool that is not there is told as any other failure.
        let mut picture = fetch(&client).map_err(failure)?;
        let mut screen = Screen::take()?;
        let mut view = View { order: self.order, ..View::default() };
        let interval = self.interval.max(INTERVAL_MIN);
        loop {
            screen.draw(&picture.lines(&view, Paper::stdout()))?;
            let until = Instant::now() + interval;
            while let Some(key) = screen.key(until.saturating_duration_since(Instant::now()))? {
                match key {
                    Key::Quit => return Ok(Exit::Success),
                    Key::Resized => {}
                    Key::Up => view.scroll = view.scroll.saturating_sub(1),
                    Key::Down => view.scroll += 1,
                    Key::PageUp => view.scroll = view.scroll.saturating_sub(20),
                    Key::PageDown => view.scroll += 20,
                    Key::Letter(letter) => view.choose(letter),
                }
                view.scroll = view.scroll.min(picture.gpus.len().saturating_sub(1));
                screen.draw(&picture.lines(&view, Paper::stdout()))?;
            }
            match fetch(&client) {
                Ok(fresh) => {
                    picture = fresh;
                    view.trouble = None;
                }
                Err(error) => view.trouble = Some(error.to_string()),
            }
        }
    }
}

fn fetch(client: &Client) -> Result<Picture, ClientError> {
    let now_ms = ask::now_ms(client)?;
    let (gpus, _) = ask::all(client, "/v1/gpus")?;
    let (boxes, _) = ask::all(client, "/v1/boxes")?;
    let (granted, _) = ask::all(client, "/v1/leases?state=granted")?;
    let (pending, _) = ask::all(client, "/v1/leases?state=pending")?;
    Ok(Picture { now_ms, gpus, boxes, granted, pending })
}
