//! A keeper between a real manager and a program that speaks on its socket.

use std::io::BufReader;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use keeper::{FromProgram, Place, State, ToProgram, What};
use pool_api::{
    Class, GpuReport, Guest, Lease, LeaseRequest, LeaseState, MoveRequest, ProtectionState, SignedGrant,
    Survive, TaintRequest,
};
use pool_client::{Client, Patience, idempotency_key};
use pool_keeper::{Keeper, Settings, Way, Ways};

use crate::bed::{Bed, HANG, SimulatedBox};

const WORKER: &str = "tls:127.0.0.1:7000";

/// Every GPU is reached at an address that names it.
struct ByName;

impl Ways for ByName {
    fn way_to(&self, grant: &SignedGrant, authority: &str) -> Result<Way, String> {
        assert!(authority.contains("BEGIN CERTIFICATE") && !grant.token.is_empty());
        Ok(Way { address: format!("tls:{}", grant.gpu), name: grant.gpu.box_name.to_string() })
    }
}

/// A pool of one box, a lease of one GPU of it, and its keeper.
struct Kept {
    bed: Bed,
    gpu_box: SimulatedBox,
    lease: Lease,
    keeper: Keeper,
    said: Arc<Mutex<Vec<String>>>,
    _folder: tempfile::TempDir,
}

fn kept(gpus: u8, patience: Duration, suspend_when_idle: Option<Duration>) -> Kept {
    kept_as(Class::Dedicated, gpus, patience, suspend_when_idle)
}

/// The same of any class; for a guest, the box has a seat on its first GPU.
fn kept_as(class: Class, gpus: u8, patience: Duration, suspend_when_idle: Option<Duration>) -> Kept {
    let bed = crate::survival::calm();
    let mut gpu_box = bed.join("rack1-a", gpus);
    if class == Class::Offline {
        let first = gpu_box.report.gpus[0].clone();
        let guest = Some(Guest { of: 0, any_tenant: true, overcommit: false });
        gpu_box.report.gpus.push(GpuReport { slot: 32, guest, memory_bytes: 40 << 30, ..first });
    }
    gpu_box.turn();
    let ada = bed.user("spiffe://dxpu/tenant/vision/ada");
    let survive = Survive::Gpu;
    let request = LeaseRequest { survive, class, ttl_ms: 3_600_000, ..LeaseRequest::default() };
    let lease = ada.create_lease(&request, &idempotency_key()).unwrap();
    let client = Client::new(ada.credential().clone(), Patience::ONCE).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let said = Arc::new(Mutex::new(Vec::new()));
    let told = said.clone();
    let settings = Settings {
        directory: folder.path().to_owned(),
        patience,
        suspend_when_idle,
        say: Box::new(move |text| told.lock().unwrap().push(text)),
    };
    let keeper =
        Keeper::start(client, lease.clone(), &[WORKER.to_owned()], Box::new(ByName), settings).unwrap();
    Kept { bed, gpu_box, lease, keeper, said, _folder: folder }
}

/// The library of a program, as far as the keeper sees it.
struct Program {
    words: BufReader<UnixStream>,
}

impl Program {
    /// Attaches, and waits until the keeper knows of the link: it turns away what is asked of a program without one.
    fn attach(kept: &Kept) -> Self {
        let known = links(kept);
        let stream = UnixStream::connect(kept.keeper.socket()).unwrap();
        stream.set_read_timeout(Some(HANG)).unwrap();
        let mut program = Self { words: BufReader::new(stream) };
        program.say(&FromProgram::Attached { worker: WORKER.into(), pid: 42, image: "00ff".into() });
        let began = Instant::now();
        while links(kept) == known {
            assert!(began.elapsed() < HANG, "the link is never reported");
            std::thread::sleep(Duration::from_millis(20));
        }
        program
    }

    fn say(&mut self, word: &FromProgram) {
        keeper::write_line(self.words.get_mut(), word).unwrap();
    }

    fn hear(&mut self) -> ToProgram {
        keeper::read_line(&mut self.words).unwrap().expect("the keeper is there")
    }

    fn lose(&mut self, is_device: bool) {
        let why = "the connection broke".to_owned();
        self.say(&FromProgram::Lost { worker: WORKER.into(), why, is_device });
    }

    fn protect(&mut self, journal_bytes: u64) {
        self.say(&FromProgram::Protection {
            state: State::Protected,
            why: String::new(),
            cut: 9,
            level: 1,
            safe_age_ms: 250,
            live_bytes: 6 << 30,
            journal_bytes,
            pause_us: 80,
            predicted_ms: 900,
        });
    }
}

fn show(kept: &Kept) -> Lease {
    kept.bed.admin.get(&format!("/v1/leases/{}", kept.lease.id), Duration::ZERO).unwrap()
}

/// Waits until the lease is as it must be.
fn until(kept: &Kept, is_so: impl Fn(&Lease) -> bool) -> Lease {
    let began = Instant::now();
    loop {
        let lease = show(kept);
        if is_so(&lease) {
            return lease;
        }
        assert!(began.elapsed() < HANG, "{lease:?}; {:?}", kept.said.lock().unwrap());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// How many links the keeper has told the manager of.
fn links(kept: &Kept) -> usize {
    kept.bed.admin.protection(kept.lease.id).unwrap().links.len()
}

#[test]
fn a_lost_program_hears_where_its_lease_is_now() {
    let kept = kept(2, HANG, None);
    let (mut program, mut other) = (Program::attach(&kept), Program::attach(&kept));
    program.lose(true);
    let ToProgram::Place { place } = program.hear() else { panic!("no place") };
    let now = show(&kept);
    assert_ne!(now.grants[0].gpu, kept.lease.grants[0].gpu);
    assert_eq!(place.address, format!("tls:{}", now.grants[0].gpu));
    let ada = Client::new(kept.bed.admin.credential().clone(), Patience::ONCE).unwrap();
    let signed = ada.lease_tokens(kept.lease.id).unwrap();
    let token = std::fs::read_to_string(&place.token_file).unwrap();
    assert_eq!(
        token.split('.').count(),
        signed.grants[0].token.split('.').count(),
        "one token, as boxes take it"
    );
    assert!(std::fs::read_to_string(place.ca_file.clone().unwrap()).unwrap().contains("BEGIN CERTIFICATE"));
    // Another process of the program has lost the same GPU: it hears of the same place, and the lease stays there.
    other.lose(true);
    let ToProgram::Place { place: same } = other.hear() else { panic!("no place") };
    assert_eq!((same.address, show(&kept).grants), (place.address, now.grants));
}

#[test]
fn without_a_gpu_the_program_waits_and_then_hears_why_not() {
    let mut kept = kept(1, Duration::from_secs(3), None);
    let mut program = Program::attach(&kept);
    program.lose(true);
    until(&kept, |lease| lease.state == LeaseState::Pending);
    let ToProgram::Nowhere { why } = program.hear() else { panic!("there is no other GPU") };
    assert!(why.contains("waits for a GPU"), "{why}");
    // The box has cleaned meanwhile: the next word finds the GPU under its new epoch.
    kept.gpu_box.turn();
    program.lose(false);
    assert!(matches!(program.hear(), ToProgram::Place { .. }));
}

#[test]
fn a_manager_that_is_away_when_a_gpu_is_lost_is_asked_until_it_answers() {
    let kept = kept(2, HANG, None);
    let mut program = Program::attach(&kept);
    let Kept { bed, gpu_box, lease, keeper, said, _folder } = kept;
    // The manager stops; another begins on the same store and the same address.
    let address = bed.manager.address();
    let Bed { manager, store, admin, admin_file, folder } = bed;
    drop(manager);
    program.lose(false);
    std::thread::sleep(Duration::from_secs(1));
    let mut settings = crate::bed::settings(store.clone(), admin_file.clone(), "m1");
    settings.listen = address;
    let manager = pool_manager::Manager::start(settings).unwrap();
    let bed = Bed { manager, store, admin, admin_file, folder };
    let mut kept = Kept { bed, gpu_box, lease, keeper, said, _folder };
    // The new leader grants nothing in a box before it has reported.
    let began = Instant::now();
    while kept.gpu_box.try_report().is_err() {
        assert!(began.elapsed() < HANG, "the second manager does not lead");
        std::thread::sleep(Duration::from_millis(50));
    }
    let place = program.hear();
    assert!(matches!(place, ToProgram::Place { .. }), "{place:?}");
    assert_ne!(show(&kept).grants[0].gpu, kept.lease.grants[0].gpu);
}

#[test]
fn a_program_moves_when_its_box_is_drained_and_stays_when_it_cannot() {
    let kept = kept(1, HANG, None);
    let mut two = kept.bed.join("rack1-b", 1);
    two.turn();
    let mut program = Program::attach(&kept);
    let way = kept.bed.admin.move_lease(kept.lease.id, &MoveRequest::default()).unwrap();
    let ToProgram::Move { place } = program.hear() else { panic!("not asked to move") };
    assert_eq!(place.address, "tls:rack1-b/0");
    program.say(&FromProgram::Refused { what: What::Move, why: "a graph is being captured".into() });
    let stays = until(&kept, |lease| lease.moving.is_none());
    assert_eq!((stays.grants, way.grants), (kept.lease.grants.clone(), kept.lease.grants.clone()));
    two.turn();
    let drain = TaintRequest { reason: "fans".into() };
    kept.bed
        .admin
        .post::<pool_api::BoxRecord>("/v1/boxes/rack1-a/drain", &drain, None, Duration::ZERO)
        .unwrap();
    let ToProgram::Move { place: Place { address, .. } } = program.hear() else {
        panic!("not asked to move")
    };
    program.say(&FromProgram::Moved { worker: address });
    let arrived = until(&kept, |lease| lease.grants[0].gpu.box_name.as_str() == "rack1-b");
    assert_eq!((arrived.state, arrived.moving), (LeaseState::Granted, None));
}

#[test]
fn a_program_is_suspended_when_it_is_asked_for_and_comes_back_when_it_calls_cuda() {
    let mut kept = kept(1, HANG, None);
    let mut program = Program::attach(&kept);
    kept.bed.admin.suspend_lease(kept.lease.id).unwrap();
    assert_eq!(program.hear(), ToProgram::Suspend {});
    program.say(&FromProgram::Parked { image_bytes: 77 });
    let parked = until(&kept, |lease| lease.state == LeaseState::Parked);
    assert_eq!(parked.parking.unwrap().image_bytes, 77);
    kept.gpu_box.turn();
    program.say(&FromProgram::Unpark {});
    let ToProgram::Place { place } = program.hear() else { panic!("no place") };
    assert_eq!(place.address, format!("tls:{}", kept.lease.grants[0].gpu));
    assert_eq!(show(&kept).state, LeaseState::Granted);
}

#[test]
fn an_idle_program_gives_its_gpu_back_and_a_busy_one_does_not() {
    let kept = kept(1, HANG, Some(Duration::from_secs(4)));
    let mut program = Program::attach(&kept);
    // Busy for longer than that: each word tells of more.
    for journal_bytes in 1..=10 {
        program.protect(journal_bytes);
        std::thread::sleep(Duration::from_millis(600));
    }
    assert_eq!(show(&kept).state, LeaseState::Granted);
    assert_eq!(program.hear(), ToProgram::Suspend {}, "it has said nothing new since");
    program.say(&FromProgram::Parked { image_bytes: 1 });
    until(&kept, |lease| lease.state == LeaseState::Parked);
}

#[test]
fn a_drill_is_done_shown_and_leaves_nothing_behind() {
    let mut kept = kept(2, HANG, None);
    let mut program = Program::attach(&kept);
    program.protect(5);
    let way = kept.bed.admin.drill_lease(kept.lease.id).unwrap();
    let to = way.moving.unwrap().to.gpu;
    let ToProgram::Drill { place } = program.hear() else { panic!("not asked to drill") };
    assert_eq!(place.address, format!("tls:{to}"));
    program.say(&FromProgram::Drilled { took_ms: 321, difference: None });
    let over = until(&kept, |lease| lease.moving.is_none());
    assert_eq!(over.grants, kept.lease.grants);
    let began = Instant::now();
    let known = loop {
        let known = kept.bed.admin.protection(kept.lease.id).unwrap();
        let is_protected = |link: &pool_api::LinkProtection| link.state == ProtectionState::Protected;
        if known.links.first().is_some_and(is_protected) && known.last_drill.is_some() {
            break known;
        }
        assert!(began.elapsed() < HANG, "{known:?}");
        std::thread::sleep(Duration::from_millis(20));
    };
    let link = &known.links[0];
    assert_eq!((link.state, link.image_bytes, link.predicted_ms), (ProtectionState::Protected, 6 << 30, 900));
    assert_eq!((link.pid, &link.gpu), (42, &kept.lease.grants[0].gpu));
    assert_eq!(known.last_drill.unwrap().took_ms, 321);
    kept.gpu_box.turn();
    let gpu: pool_api::Gpu = kept.bed.admin.get(&format!("/v1/gpus/{to}"), Duration::ZERO).unwrap();
    assert_eq!(gpu.state, pool_api::GpuState::Free);
}

#[test]
fn a_program_without_a_protected_link_is_neither_moved_nor_suspended_nor_drilled() {
    let kept = kept(2, HANG, None);
    let admin = &kept.bed.admin;
    admin.move_lease(kept.lease.id, &MoveRequest::default()).unwrap();
    until(&kept, |lease| lease.moving.is_none());
    kept.bed.admin.suspend_lease(kept.lease.id).unwrap();
    let stays = until(&kept, |lease| !lease.suspend_wanted);
    assert_eq!((stays.state, stays.grants), (LeaseState::Granted, kept.lease.grants.clone()));
}

/// A lease that needs the GPU of the guest's seat, when its box has cleaned the seat.
fn whole(kept: &Kept) -> Lease {
    let tenant = Some(kept.lease.tenant.clone());
    let request = LeaseRequest { tenant, ttl_ms: 3_600_000, ..LeaseRequest::default() };
    kept.bed.admin.create_lease(&request, &idempotency_key()).unwrap()
}

fn state(kept: &Kept, lease: &Lease) -> LeaseState {
    let lease: Lease = kept.bed.admin.get(&format!("/v1/leases/{}", lease.id), Duration::ZERO).unwrap();
    lease.state
}

#[test]
fn a_guest_is_suspended_while_its_gpu_is_needed_and_goes_on_by_itself() {
    let mut kept = kept_as(Class::Offline, 1, HANG, None);
    assert_eq!(kept.lease.grants[0].gpu.to_string(), "rack1-a/32");
    let mut program = Program::attach(&kept);
    let first = whole(&kept);
    assert_eq!(program.hear(), ToProgram::Suspend {});
    assert_eq!(state(&kept, &first), LeaseState::Pending, "the guest has not left yet");
    program.say(&FromProgram::Parked { image_bytes: 77 });
    let waits = until(&kept, |lease| lease.state == LeaseState::Pending);
    assert!(waits.is_unseated(), "{waits:?}");
    kept.gpu_box.turn();
    assert_eq!(state(&kept, &first), LeaseState::Granted);
    kept.bed.admin.release_lease(first.id).unwrap();
    kept.gpu_box.turn();
    until(&kept, |lease| lease.state == LeaseState::Granted);

    // It has not called CUDA since: it leaves again without being asked.
    let second = whole(&kept);
    let waits = until(&kept, |lease| lease.state == LeaseState::Pending);
    assert!(waits.is_unseated() && waits.parking.unwrap().image_bytes == 77, "{waits:?}");
    kept.gpu_box.turn();
    assert_eq!(state(&kept, &second), LeaseState::Granted);
    // Its next call waits until there is a seat.
    program.say(&FromProgram::Unpark {});
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(show(&kept).state, LeaseState::Pending);
    kept.bed.admin.release_lease(second.id).unwrap();
    kept.gpu_box.turn();
    let ToProgram::Place { place } = program.hear() else { panic!("no place") };
    assert_eq!(place.address, "tls:rack1-a/32");
    let said = kept.said.lock().unwrap().join("\n");
    assert!(said.contains("needed as a whole; it waits for another seat"), "{said}");
}

#[test]
fn a_guest_that_was_evicted_waits_for_a_seat_for_longer_than_its_patience() {
    let patience = Duration::from_secs(2);
    let mut kept = kept_as(Class::Offline, 1, patience, None);
    let mut program = Program::attach(&kept);
    let first = whole(&kept);
    assert_eq!(program.hear(), ToProgram::Suspend {});
    program.say(&FromProgram::Refused { what: What::Suspend, why: "its streams never stand still".into() });
    let waits = until(&kept, |lease| lease.state == LeaseState::Pending);
    assert!(waits.moves[0].reason.contains("its streams never stand still"), "{waits:?}");
    kept.gpu_box.turn();
    assert_eq!(state(&kept, &first), LeaseState::Granted);
    program.lose(false);
    let began = Instant::now();
    while began.elapsed() < patience * 2 {
        assert_eq!(program.hear(), ToProgram::Wait {});
    }
    kept.bed.admin.release_lease(first.id).unwrap();
    kept.gpu_box.turn();
    let place = std::iter::repeat_with(|| program.hear()).find(|word| *word != ToProgram::Wait {});
    assert!(matches!(place, Some(ToProgram::Place { .. })), "{place:?}");
}
