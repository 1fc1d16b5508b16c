//! Programs that outlive their GPU: they are given another place when theirs is lost, and are moved while they run.

use super::Desk;
use crate::gpus::{GpuPart, GpuWay, NoWay};
use crate::line::Line;
use functions::{Event, InstanceId, Link, SlotId};
use keeper::ToProgram;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// A program waits so long for a place, as long as its library does by itself.
const PATIENCE: Duration = Duration::from_secs(60);
/// A worker that was killed is started again within so long; then another GPU of the service takes its program.
const OWN_GPU_WITHIN: Duration = Duration::from_secs(3);
/// How soon a place is tried again.
const AGAIN_AFTER: Duration = Duration::from_millis(200);
/// How long a way to the target of a move is looked for.
const WAY_WITHIN: Duration = Duration::from_secs(5);

impl Desk {
    /// How well the program of an instance is protected.
    pub(crate) fn linked(self: &Arc<Self>, instance: InstanceId, link: Link) {
        let mut state = locks::lock(&self.state);
        self.apply(&mut state, Event::Linked { instance, link });
    }

    /// A program goes on after a loss or a move.
    pub(crate) fn resumed(&self, instance: InstanceId, worker: &str, gap_ms: u64) {
        tracing::info!(%instance, worker, gap_ms, "the program of an instance goes on in another session");
        self.counts.resumed.fetch_add(1, Ordering::Relaxed);
        self.counts.paused_ms.fetch_add(gap_ms, Ordering::Relaxed);
    }

    /// A program is where it was told to move to.
    pub(crate) fn moved(self: &Arc<Self>, instance: InstanceId) {
        let mut state = locks::lock(&self.state);
        let Some(found) = state.instances.get_mut(&instance) else { return };
        let Some(moving) = found.moving.take() else { return };
        if let Some(line) = &found.line {
            line.is_at(moving.spot);
        }
        tracing::info!(%instance, from = moving.from.0, to = moving.to.0, "a running instance moved to an idle GPU");
        self.counts.moved.fetch_add(1, Ordering::Relaxed);
        if let Some(gpus) = self.gpus.get() {
            gpus.left(moving.from, instance);
        }
        self.apply(&mut state, Event::Moved { instance });
    }

    /// A program stays where it was.
    pub(crate) fn not_moved(self: &Arc<Self>, instance: InstanceId, why: &str) {
        let mut state = locks::lock(&self.state);
        let Some(moving) = state.instances.get_mut(&instance).and_then(|found| found.moving.take()) else {
            return;
        };
        tracing::warn!(%instance, to = moving.to.0, why, "a running instance could not be moved");
        self.counts.not_moved.fetch_add(1, Ordering::Relaxed);
        if let Some(gpus) = self.gpus.get() {
            gpus.left(moving.to, instance);
        }
        self.apply(&mut state, Event::NotMoved { instance });
    }

    /// Finds a way to another GPU and has the program go there.
    pub(super) fn lead(self: &Arc<Self>, instance: InstanceId, to: SlotId, line: Arc<Line>) {
        let this = self.clone();
        self.runtime.spawn(async move {
            let until = Instant::now() + WAY_WITHIN;
            let way = loop {
                match this.way(instance, to, &line).await {
                    Ok(way) => break way,
                    Err(why) if Instant::now() >= until => return this.not_moved(instance, &why.to_string()),
                    Err(_) => tokio::time::sleep(AGAIN_AFTER).await,
                }
            };
            if let Some(found) = locks::lock(&this.state).instances.get_mut(&instance)
                && let Some(moving) = &mut found.moving
            {
                moving.spot = way.spot;
            }
            if !line.tell(&ToProgram::Move { place: way.place }) {
                this.not_moved(instance, "its program has no line to the service");
            }
        });
    }

    /// A program has lost its session: it is told where to go on.
    pub(crate) fn find_place(
        self: &Arc<Self>,
        instance: InstanceId,
        line: Arc<Line>,
        why: String,
        is_device: bool,
    ) {
        let this = self.clone();
        self.runtime.spawn(async move {
            tracing::info!(%instance, why, is_device, "the program of an instance has lost its session");
            match this.search(instance, &line, is_device).await {
                Ok(way) => {
                    line.is_at(way.spot);
                    line.tell(&ToProgram::Place { place: way.place });
                }
                Err(no_way) => {
                    let why = no_way.to_string();
                    tracing::warn!(%instance, why, "the program of an instance cannot go on");
                    this.counts.given_up.fetch_add(1, Ordering::Relaxed);
                    line.tell(&ToProgram::Nowhere { why });
                    let mut state = locks::lock(&this.state);
                    this.apply(&mut state, Event::GivenUp { instance });
                }
            }
        });
    }

    /// Its own GPU first, unless that has failed; then any GPU of the service that has room.
    async fn search(
        self: &Arc<Self>,
        instance: InstanceId,
        line: &Arc<Line>,
        is_device: bool,
    ) -> Result<GpuWay, NoWay> {
        let until = Instant::now() + PATIENCE;
        let lost = line.spot();
        let mut tried = (None, Instant::now());
        let mut last = NoWay::Ended;
        while Instant::now() < until {
            let slot = locks::lock(&self.state).machine.slot_of(instance).ok_or(NoWay::Ended)?;
            if tried.0 != Some(slot) {
                tried = (Some(slot), Instant::now());
            }
            let is_useless = match self.way(instance, slot, line).await {
                Ok(way) if is_device && way.spot == lost => {
                    last = NoWay::Failed;
                    true
                }
                Ok(way) => return Ok(way),
                Err(why) => {
                    last = why;
                    tried.1.elapsed() >= OWN_GPU_WITHIN
                }
            };
            if is_useless {
                let mut state = locks::lock(&self.state);
                self.apply(&mut state, Event::Stranded { instance });
            }
            tokio::time::sleep(AGAIN_AFTER).await;
        }
        Err(NoWay::Late { within: PATIENCE, last: Box::new(last) })
    }

    /// A way to a part of a GPU for an instance that runs, tried once.
    async fn way(self: &Arc<Self>, instance: InstanceId, slot: SlotId, line: &Line) -> Result<GpuWay, NoWay> {
        let key = locks::lock(&self.state).instances.get(&instance).map(|found| found.key.clone());
        let key = key.ok_or(NoWay::Ended)?;
        let function = self.function(&key).ok_or(NoWay::Ended)?;
        let (this, number) = (self.clone(), line.next_place());
        let open = move || {
            let part = GpuPart {
                slot,
                tenant: key.tenant.clone(),
                instance,
                declared_mb: function.configuration.gpu_mb().unwrap_or(0),
                folder: this.cache.gpu(instance, &key.tenant)?,
                survives: true,
                number,
            };
            this.gpus.get().ok_or(NoWay::Ends)?.try_open(&part)
        };
        tokio::task::spawn_blocking(open).await.unwrap_or(Err(NoWay::Ends))
    }
}
