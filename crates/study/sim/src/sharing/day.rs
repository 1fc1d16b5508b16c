//! A day: loads rise and fall, and guests are seated anew at each hour that is played.

use super::cluster::{Cluster, ONLINE_SM_ACTIVITY, OfflineProgram, OnlineProgram};
use super::latency::{SWITCH_US, p99_ratio};
use super::policy::{Seated, seat};
use matching::kinds::{Guest, Seat, weight};
use matching::measured::speed_model;
use matching::speed::{Offline, Online, SpeedModel};
use std::collections::BTreeMap;

/// A GPU of the simulation has so much memory; only parts of it matter.
const GPU_BYTES: u64 = 80 << 30;
/// How much longer a request may take because of a guest, as a part of its time.
const SLACK: f64 = 0.1;
/// How far the load of an hour is from the day's mean, at most.
const SWING: f64 = 0.6;
/// The hours that are played: evenly spread, so that their mean load is the day's.
const HOURS: [u64; 4] = [2, 8, 14, 20];

/// The model of GPU whose measured constants are used: so far there are no others.
const MODEL: &str = "H200";

/// One policy's day.
#[derive(Clone, Debug, PartialEq)]
pub struct Day {
    /// The policy.
    pub policy: Seated,
    /// Means over the day.
    pub after: Figures,
    /// Steps of the matching in the hour that took most.
    pub steps_max: u64,
}

/// What is measured, in percent unless it says otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figures {
    /// GPU utilisation.
    pub utilization: f64,
    /// SM activity.
    pub sm_activity: f64,
    /// Memory in use.
    pub memory: f64,
    /// GPUs that have a guest.
    pub seated: f64,
    /// How fast guests run, as a share of their rate alone.
    pub guest_speed: f64,
    /// The work of guests, in GPUs that would do it alone.
    pub guest_work: f64,
    /// The largest growth of an online program's 99th percentile.
    pub p99_growth_max: f64,
    /// Its mean over online programs with a guest.
    pub p99_growth_mean: f64,
}

/// Plays a day. `between` is called around each hour's decision, for a caller that measures how long it takes.
pub fn simulate_day(cluster: &Cluster, policy: Seated, between: &mut dyn FnMut(bool)) -> Day {
    let model = speed_model(MODEL);
    let guests: Vec<Guest> = cluster.offline.iter().map(guest).collect();
    let asked: Vec<u16> = cluster.offline.iter().map(|program| program.asked_milli).collect();
    let mut day = Day { policy, after: Figures::default(), steps_max: 0 };
    let mut ratios = Ratios::default();
    for hour in HOURS {
        let seats: Vec<Seat> = cluster.online.iter().map(|program| seat_at(program, hour as f64)).collect();
        between(true);
        let (seated, steps) = seat(policy, &model, &seats, &guests, &asked, hour);
        between(false);
        day.steps_max = day.steps_max.max(steps);
        let hour = measure(cluster, &model, &seats, &guests, &seated, &mut ratios);
        day.after.add(&hour);
    }
    day.after.divide(HOURS.len() as f64);
    day
}

fn guest(program: &OfflineProgram) -> Guest {
    Guest {
        offline: Offline { busy: program.busy },
        bytes: (program.memory * GPU_BYTES as f64) as u64,
        residual_us: program.residual_us,
    }
}

/// The load of an hour. The swing is cut where it would leave the bounds, on both sides alike, so that the day's mean stays.
fn load_at(program: &OnlineProgram, hour: f64) -> f64 {
    let room = ((0.97 - program.load) / program.load).clamp(0.0, SWING);
    let turn = (hour - program.peak_hour) / 24.0 * std::f64::consts::TAU;
    program.load * (1.0 + room * turn.cos())
}

fn seat_at(program: &OnlineProgram, hour: f64) -> Seat {
    let load = load_at(program, hour);
    Seat {
        // Busy periods of a queue with requests at random.
        online: Online { load, busy_periods: load * (1.0 - load) / program.service_s },
        free_bytes: ((1.0 - program.memory) * GPU_BYTES as f64) as u64,
        slack_us: SLACK * program.service_s * 1e6,
    }
}

/// 99th percentiles by kind: they are played once.
#[derive(Default)]
struct Ratios(BTreeMap<(u32, u32, u32), f64>);

impl Ratios {
    fn of(&mut self, load: f64, service_s: f64, residual_us: f64) -> f64 {
        let twentieth = (load * 20.0).ceil().clamp(1.0, 19.0);
        let key = (twentieth as u32, (service_s * 1e6) as u32, residual_us as u32);
        let delay_s = (SWITCH_US + residual_us) / 1e6;
        *self.0.entry(key).or_insert_with(|| p99_ratio(twentieth / 20.0, service_s, delay_s))
    }
}

fn measure(
    cluster: &Cluster,
    model: &SpeedModel,
    seats: &[Seat],
    guests: &[Guest],
    seated: &[(usize, usize)],
    ratios: &mut Ratios,
) -> Figures {
    let gpus = seats.len() as f64;
    let mut figures = Figures::default();
    for (program, seat) in cluster.online.iter().zip(seats) {
        figures.utilization += seat.online.load;
        figures.sm_activity += seat.online.load * ONLINE_SM_ACTIVITY;
        figures.memory += program.memory;
    }
    let mut taken = vec![false; seats.len()];
    for &(guest, at) in seated {
        assert!(!std::mem::replace(&mut taken[at], true), "a seat has one guest");
        let worth = weight(model, &seats[at], &guests[guest]);
        assert!(worth.is_some(), "a guest sits where it fits");
        let (seat, program) = (&seats[at], &cluster.offline[guest]);
        let speed = model.speed(seat.online, guests[guest].offline);
        figures.utilization += speed * program.busy;
        figures.sm_activity += speed * program.busy * program.sm_activity;
        figures.memory += program.memory;
        figures.guest_speed += speed;
        figures.guest_work += speed;
        let service_s = cluster.online[at].service_s;
        let growth = ratios.of(seat.online.load, service_s, program.residual_us) - 1.0;
        figures.p99_growth_max = figures.p99_growth_max.max(growth);
        figures.p99_growth_mean += growth;
    }
    let count = (seated.len() as f64).max(1.0);
    for sum in [&mut figures.utilization, &mut figures.sm_activity, &mut figures.memory] {
        *sum *= 100.0 / gpus;
    }
    figures.seated = seated.len() as f64 / gpus * 100.0;
    figures.guest_speed /= count;
    figures.p99_growth_mean *= 100.0 / count;
    figures.p99_growth_max *= 100.0;
    figures
}

impl Figures {
    fn add(&mut self, hour: &Self) {
        self.utilization += hour.utilization;
        self.sm_activity += hour.sm_activity;
        self.memory += hour.memory;
        self.seated += hour.seated;
        self.guest_speed += hour.guest_speed;
        self.guest_work += hour.guest_work;
        self.p99_growth_mean += hour.p99_growth_mean;
        self.p99_growth_max = self.p99_growth_max.max(hour.p99_growth_max);
    }

    fn divide(&mut self, hours: f64) {
        for sum in [
            &mut self.utilization,
            &mut self.sm_activity,
            &mut self.memory,
            &mut self.seated,
            &mut self.guest_speed,
            &mut self.guest_work,
            &mut self.p99_growth_mean,
        ] {
            *sum /= hours;
        }
    }
}
