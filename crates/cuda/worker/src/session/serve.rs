//! A client that is attached, from its first command to its end.

use crate::{
    config::{DRAINED_WITHIN, SessionConfig},
    content::Memory,
    end::{EndKind, Ending, SessionEnd},
    images::ImageCache,
    session::{
        ahead::Ahead,
        attach::Attached,
        command_loop::CommandLoop,
        content::Content,
        cuts::{Cuts, GuardianPlace, OpenStore},
        events::{Events, read_events},
        exchange::Exchange,
        gate::Gate,
        input::Input,
        link::Link,
        outgoing::Outgoing,
        presence::TellClient,
        pulse::Pulse,
        regions::Regions,
        replies::Replies,
        spawn,
        timeline::Timeline,
        waiters::Waiters,
    },
};
use bulk::{Fault, Lanes, LanesConfig};
use cuda_driver::{Class, Driver};
use cuda_wire::Notice;
use std::sync::Arc;
use std::time::Duration;
use transport::{Connection, Rx};

/// What a session has beside its driver and its client.
pub(crate) struct Surroundings<'a> {
    pub(crate) open_store: OpenStore,
    /// For what clients send.
    pub(crate) memory: Option<&'a Memory>,
    /// Where contexts are merged.
    pub(crate) pulse: Option<&'a Pulse>,
}

/// Executes the client's commands until the session ends, and says why it did.
pub(crate) fn serve(
    mut attached: Attached,
    driver: &Arc<dyn Driver>,
    config: &SessionConfig,
    around: &Surroundings<'_>,
) -> SessionEnd {
    let ending = attached.ending.clone();
    let sharer = attached.sharer.clone();
    let is_online = attached.admitted.class == Class::Online;
    // Held until everything of this session is gone.
    let _part = attached.part.take();
    let Assembled { commands, input, link, events_rx } = assemble(attached, driver, config, around);
    if let Some(pulse) = around.pulse {
        pulse.serve(commands.replies.clone(), ending.clone(), is_online);
    }
    let (cuts, gate) = (commands.cuts.clone(), commands.gate.clone());
    start_threads(commands, input, &link, events_rx, &ending, config.stall_timeout);
    let end = watch(&ending, &link.events, config.stall_timeout);
    wind_up(&end, driver, &link, config.is_merged);
    cuts.close();
    // An instance of a function that is no longer wanted is killed, and is as good a teacher as any.
    if matches!(end.kind, EndKind::Finished | EndKind::PeerLost) {
        gate.remember_loads();
    }
    // Its client may have noticed the fault first, and left.
    let comes_back = cuts.is_protected() && (end.kind == EndKind::DeviceLost || driver.fault().is_some());
    if let Some(sharer) = sharer {
        // The slot of a session that has drained holds its waiting work back. The front empties it when the process is gone.
        if config.is_merged { sharer.stay(comes_back) } else { sharer.leave() }
    }
    end
}

/// The parts of a session, ready to run.
struct Assembled {
    commands: CommandLoop,
    input: Input,
    link: Arc<Link>,
    events_rx: Rx,
}

/// Puts the parts together, each from those before it.
///
/// ```text
///   Outgoing, Events, Lanes ─▶ Link ─▶ Gate ─▶ Replies ─▶ Cuts ─▶ CommandLoop
///                               └─▶ driver
/// ```
fn assemble(
    attached: Attached,
    driver: &Arc<dyn Driver>,
    config: &SessionConfig,
    around: &Surroundings<'_>,
) -> Assembled {
    let Attached {
        admitted,
        credit_bytes,
        wants_timeline,
        wants_content,
        sharer,
        mut input,
        tx,
        closer,
        inbox,
        joined,
        ending,
        ..
    } = attached;
    let tenant = config.admission.tenant(&admitted);
    let images = images(config, &tenant, driver);
    let (events_tx, events_rx, events_closer) = joined.events.split();
    let events = Arc::new(Events::new(events_tx, events_closer));
    let timeline = wants_timeline.then(|| Timeline::start(driver, &events));
    let lanes = Arc::new(lanes(joined.lanes, config, &ending));
    let outgoing = Outgoing::new(tx, closer, lanes.clone());
    let content = around
        .memory
        .filter(|_| wants_content)
        .and_then(|memory| content(memory, &tenant, &lanes, &events, &ending));
    let link = Arc::new(Link::new(lanes, events, outgoing, config.push_window_bytes).keeping(content));
    driver.attach(link.clone());
    let plans = images.clone().filter(|_| wants_content && config.modules_ahead);
    let gate = Gate::new(driver.clone(), link.clone(), images, credit_bytes, config.host_bytes_max)
        .loading_ahead(plans.map(|plans| Ahead::new(plans)));
    if let Some(sharer) = &sharer {
        sharer.start(&ending, tell_that_it_waits(&link));
    }
    let gate = Arc::new(gate.sharing(sharer).timed_by(timeline.clone()));
    let replies = Replies::new(gate.clone(), link.clone(), ending.clone(), timeline.clone());
    let replies = Arc::new(replies.merged(around.pulse.map(Pulse::fault)));
    let guardian = config.guardian.clone().map(|path| GuardianPlace {
        path,
        address: config.guardian_address.clone(),
        lease: admitted.lease.clone(),
        open: around.open_store,
    });
    let cuts = Arc::new(Cuts::new(driver.clone(), link.clone(), replies.clone(), guardian));
    if let Some(spin) = config.spin() {
        input.set_spin(spin);
    }
    let exchange = Exchange::new(config.worker, tenant);
    let commands = CommandLoop {
        driver: driver.clone(),
        exchange,
        gate,
        link: link.clone(),
        replies,
        waiters: Waiters::default(),
        cuts,
        regions: Regions::new(inbox, config.shared_host_bytes_max),
        ending,
        timeline,
        spin: config.spin().unwrap_or_default(),
        answer: Vec::new(),
    };
    Assembled { commands, input, link, events_rx }
}

/// How the client hears that its work waits.
fn tell_that_it_waits(link: &Arc<Link>) -> TellClient {
    let link = link.clone();
    Box::new(move |words| {
        // A client that cannot hear it is lost, which the events' own thread tells.
        let _ = link.events.send(&Notice::Waits { text: cuda_wire::Bytes(words.as_bytes()) });
    })
}

/// The tenant's module images, which the driver knows of then. Without them clients send every image again.
fn images(config: &SessionConfig, tenant: &str, driver: &Arc<dyn Driver>) -> Option<Arc<ImageCache>> {
    let directory = config.image_cache.as_deref()?;
    let images = ImageCache::open(directory, tenant, config.image_cache_bytes_max)
        .inspect_err(|error| tracing::warn!(%error, "cannot open the cache of module images; clients send every image again"))
        .ok()
        .map(Arc::new)?;
    driver.know(images.clone());
    Some(images)
}

/// Begins to keep what the client sends. Without it everything travels, as for any client.
fn content(
    memory: &Memory,
    tenant: &str,
    lanes: &Arc<Lanes>,
    events: &Arc<Events>,
    ending: &Arc<Ending>,
) -> Option<Arc<Content>> {
    let start = || Content::start(|| memory.open(tenant), lanes, events, ending);
    start()
        .inspect_err(|error| {
            tracing::warn!(%error, "cannot open the memory for what clients send; the next program sends it again");
        })
        .ok()
}

/// Starts the threads of a session: one reads events, one executes commands, one asks a silent client whether it is there.
fn start_threads(
    mut commands: CommandLoop,
    input: Input,
    link: &Arc<Link>,
    events_rx: Rx,
    ending: &Arc<Ending>,
    stall_timeout: Duration,
) {
    link.events.heard().touch();
    let (events_link, events_ending, timeline) = (link.clone(), ending.clone(), commands.timeline.clone());
    spawn("dxpu-events", move || {
        read_events(events_rx, &events_link.events, &events_link, timeline.as_deref(), &events_ending);
    });
    let ending = ending.clone();
    spawn("dxpu-commands", move || {
        // A panic in the driver is its own fault, never the client's; it ends this one session.
        let run = std::panic::AssertUnwindSafe(|| commands.run(input));
        let end = std::panic::catch_unwind(run)
            .unwrap_or_else(|_| SessionEnd::new(EndKind::Internal, "the driver panicked"));
        ending.end_of_commands(end);
    });
    let events = link.events.clone();
    spawn("dxpu-pulse", move || feel_pulse(&events, stall_timeout));
}

fn lanes(connections: Vec<Connection>, config: &SessionConfig, ending: &Arc<Ending>) -> Lanes {
    let ending = ending.clone();
    let on_fault = move |fault: &Fault| match fault {
        Fault::Protocol { .. } => ending.end(EndKind::Protocol, fault.to_string()),
        Fault::Internal { .. } => ending.end(EndKind::Internal, fault.to_string()),
        Fault::Closed | Fault::Connection { .. } => ending.end(EndKind::PeerLost, fault.to_string()),
    };
    Lanes::new(connections, LanesConfig { early_window_bytes: config.push_window_bytes }, on_fault)
}

/// Sends a ping to a client that has been silent for a quarter of `stall_timeout`.
///
/// On a thread of its own: a client that is frozen may not even take the question.
fn feel_pulse(events: &Events, stall_timeout: Duration) {
    let silence_max = stall_timeout / 4;
    loop {
        let silence = events.heard().silence();
        let asked = if silence >= silence_max { events.send(&Notice::Ping { nonce: 0 }) } else { Ok(()) };
        if asked.is_err() {
            return;
        }
        std::thread::sleep(silence_max.saturating_sub(silence).max(silence_max / 2));
    }
}

/// Waits until a thread ends the session, and ends it itself when the client is silent for too long.
fn watch(ending: &Ending, events: &Events, stall_timeout: Duration) -> SessionEnd {
    /// How long the command loop has to find the goodbye of a client whose other connections have ended.
    const GOODBYE_WITHIN: Duration = Duration::from_millis(200);
    let look_every = (stall_timeout / 4).clamp(Duration::from_millis(10), Duration::from_secs(1));
    loop {
        if let Some(end) = ending.wait(look_every) {
            return ending.explained(GOODBYE_WITHIN).unwrap_or(end);
        }
        if events.heard().silence() > stall_timeout {
            ending.end(
                EndKind::Stalled,
                format!("the client sent nothing for {stall_timeout:?}, not even an answer to a ping"),
            );
        }
    }
}

/// Tells the client, wakes every thread that waits for it, and stops the device.
fn wind_up(end: &SessionEnd, driver: &Arc<dyn Driver>, link: &Arc<Link>, is_merged: bool) {
    /// A client that does not take its last notice is not waited for.
    const TOLD_WITHIN: Duration = Duration::from_millis(500);
    /// A kernel that does not stop ends with the process.
    const STOPPED_WITHIN: Duration = Duration::from_secs(5);
    if end.kind.is_told() {
        let (link, reason) = (link.clone(), end.reason.clone());
        within(TOLD_WITHIN, move || {
            let _ = link.events.send(&Notice::Closing { text: cuda_wire::Bytes(reason.as_bytes()) });
        });
    }
    if is_merged {
        leave_for_certain();
        let driver = driver.clone();
        // Before the connections close: streams that wait for bytes of the client must not go on without them.
        within(DRAINED_WITHIN, move || driver.drain());
    }
    link.close();
    let driver = driver.clone();
    within(STOPPED_WITHIN, move || driver.abort());
}

/// Ends this process if it does not end by itself. No front may be there to do it.
fn leave_for_certain() {
    const LEFT_WITHIN: Duration = Duration::from_secs(12);
    let thread = std::thread::Builder::new().name("dxpu-leave".to_owned());
    let _ = thread.spawn(|| {
        std::thread::sleep(LEFT_WITHIN);
        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    });
}

/// Runs `body` on a thread and waits for it, but not longer than `timeout`.
fn within(timeout: Duration, body: impl FnOnce() + Send + 'static) {
    let (sender, receiver) = std::sync::mpsc::channel();
    let run = move || {
        body();
        let _ = sender.send(());
    };
    if std::thread::Builder::new().spawn(run).is_ok() {
        let _ = receiver.recv_timeout(timeout);
    }
}
