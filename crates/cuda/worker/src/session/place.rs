//! A session's place among those that share its GPU.
//!
//! ```text
//!   class online, offline      presence.rs   closes the gate, or has the driver wait at it
//!   dedicated, with a share    turns.rs      takes turns with the sessions of other leases
//!   dedicated                  none          no command looks any further
//! ```

use crate::{
    admission::Admitted,
    end::Ending,
    session::{
        handshake::{HandshakeError, refused},
        presence::{self, Rules, Sharer, TellClient, WhenRested},
        turns::{self, TurnTaker},
    },
};
use cuda_abi::CudaError;
use cuda_driver::{Class, Driver, PageHandle, Part, Ticket};
use cuda_wire::DriverCommand;
use shared_words::{page::sweep, process};
use std::sync::Arc;

/// Which place a session has. The last of its owners gives it back.
#[derive(Clone)]
pub(crate) enum Place {
    /// By its class.
    Classed(Arc<Sharer>),
    /// By its share.
    Equal(Arc<TurnTaker>),
}

/// The driver is being told of work, until this ends.
pub(crate) enum Telling<'a> {
    Classed { _telling: presence::Telling<'a> },
    Equal { _telling: turns::Telling<'a> },
}

/// Takes the session's place. `None` for one that has its GPU for itself.
pub(crate) fn join(
    driver: &Arc<dyn Driver>,
    admitted: &Admitted,
    rules: Rules,
) -> Result<Option<Place>, HandshakeError> {
    let Some(part) = admitted.share.map(Part::Equal).or(Part::of_class(admitted.class)) else {
        return Ok(None);
    };
    let Some(page) = driver.page() else { return no_page(part) };
    let ticket = claim(&page, part)?;
    if let Err(error) = driver.share(ticket) {
        page.page().release(ticket);
        let hint = if part.share().is_none() { "; start the program without --class" } else { "" };
        let text = format!("this worker's GPU does not take part in sharing{hint}: {error}");
        return Err(refused(error, &text));
    }
    Ok(Some(match part {
        Part::Online | Part::Offline => Place::Classed(Sharer::new(driver, page, ticket, rules)),
        Part::Equal(_) => match TurnTaker::new(driver, page, ticket) {
            Some(taker) => Place::Equal(taker),
            None => return Ok(None),
        },
    }))
}

/// A driver without a page does not know sharing. A lease with a share is alone on its GPU then.
fn no_page(part: Part) -> Result<Option<Place>, HandshakeError> {
    let class = part.class();
    if class == Class::Dedicated {
        return Ok(None);
    }
    let text = format!(
        "this worker's driver does not share GPUs between online and offline programs, so it cannot serve an {class} \
         one; start the program without --class"
    );
    Err(refused(CudaError::NOT_SUPPORTED, &text))
}

fn claim(page: &PageHandle, part: Part) -> Result<Ticket, HandshakeError> {
    let claim = || {
        let owner = process::this_process().ok()?;
        page.page().claim_part(owner, part, process::now_ns())
    };
    let ticket = claim().or_else(|| {
        // Slots of processes whose front died before it could empty them.
        sweep(page.page());
        claim()
    });
    ticket.ok_or_else(|| {
        let text = "all places for programs that share this GPU are taken; try again when one has ended";
        refused(CudaError::SYSTEM_NOT_READY, text)
    })
}

impl Place {
    /// The driver is about to be told of `command`.
    pub(crate) fn tell(&self, command: &DriverCommand<'_>) -> Option<Telling<'_>> {
        match self {
            Self::Classed(sharer) => sharer.tell(command).map(|_telling| Telling::Classed { _telling }),
            Self::Equal(taker) => taker.tell(command).map(|_telling| Telling::Equal { _telling }),
        }
    }

    /// The driver is about to be told of a read of device memory. Reads need no turn.
    pub(crate) fn tell_of_read(&self) -> Option<Telling<'_>> {
        match self {
            Self::Classed(sharer) => sharer.tell_of_read().map(|_telling| Telling::Classed { _telling }),
            Self::Equal(_) => None,
        }
    }

    /// A protected program's session is being brought to where the lost one was.
    pub(crate) fn replays(&self) {
        if let Self::Classed(sharer) = self {
            sharer.replays();
        }
    }

    /// It is there. `when_rested` is called when all work so far has ended well.
    pub(crate) fn has_replayed(&self, when_rested: WhenRested) {
        if let Self::Classed(sharer) = self {
            sharer.has_replayed(when_rested);
        }
    }

    /// The program has waited for its work, and goes on.
    pub(crate) fn waited(&self) {
        if let Self::Classed(sharer) = self {
            sharer.waited();
        }
    }

    /// The program has the answer to its wait. `is_called`: a command has come.
    pub(crate) fn open_soon(&self, is_called: impl FnMut() -> bool) {
        if let Self::Classed(sharer) = self {
            sharer.open_soon(is_called);
        }
    }

    /// Commands may come from now on; a place that cannot be kept ends the session. `tell_client`: how the client hears that it waits.
    pub(crate) fn start(&self, ending: &Arc<Ending>, tell_client: TellClient) {
        match self {
            Self::Classed(sharer) => {
                sharer.tell_client_by(tell_client);
                sharer.judge(ending);
            }
            Self::Equal(taker) => taker.start(ending),
        }
    }

    /// The session is over, and its slot is the front's to empty when the process is gone. `comes_back`: its program goes on in another
    /// session.
    pub(crate) fn stay(&self, comes_back: bool) {
        match self {
            Self::Classed(sharer) => sharer.stay(comes_back),
            Self::Equal(taker) => taker.leave(),
        }
    }

    /// The session is over.
    pub(crate) fn leave(&self) {
        match self {
            Self::Classed(sharer) => sharer.leave(),
            Self::Equal(taker) => taker.leave(),
        }
    }
}
