//! The keeper of a program that outlives the loss of a GPU.

use super::Borrow;
use super::attach::{Finder, Keeper};
use crate::support::log;
use anyhow::Context;
use pool_api::Lease;
use pool_client::Patience;
use std::ffi::OsString;
use std::time::Duration;

impl Borrow {
    /// Starts the keeper, if the program is to outlive losses, and tells the program's library where it listens.
    pub(super) fn outlive(
        &self,
        lease: &Lease,
        attached: &Keeper,
        patience: Option<Duration>,
        settings: &mut Vec<(&'static str, OsString)>,
    ) -> anyhow::Result<Option<pool_keeper::Keeper>> {
        let Some(patience) = patience else { return Ok(None) };
        if lease.request.survive.is_none() {
            log::say(format_args!(
                "dxpu: lease {} was asked for without --survive: its program outlives the loss of a session, and not that of a GPU",
                lease.id
            ));
            return Ok(None);
        }
        // Its questions come again by themselves, so that none of them waits for long.
        let client = self.access.patient(Patience::ONCE)?;
        let workers: Vec<String> = attached.addresses().iter().map(ToString::to_string).collect();
        let own = pool_keeper::Settings {
            directory: attached.folder().to_owned(),
            patience,
            suspend_when_idle: self.suspend_when_idle,
            say: Box::new(|text| log::say(format_args!("dxpu: {text}"))),
        };
        let keeper = pool_keeper::Keeper::start(client, lease.clone(), &workers, Box::new(Finder), own)
            .context("the keeper of the program cannot listen")?;
        settings.push((keeper::SOCKET_VARIABLE, keeper.socket().into()));
        Ok(Some(keeper))
    }
}
