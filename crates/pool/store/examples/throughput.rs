//! What a store can do on this machine: `cargo run --release --example throughput -- [PATH | etcd:URL,…]`.
//!
//! A transaction here is one grant as the manager writes it: a condition on the leadership and three records of 300
//! bytes. Batches put several grants into one transaction, as the manager does when requests wait.

use std::time::{Duration, Instant};

use pool_store::{Campaign, Candidacy, Leadership, Location, Store, Transaction, Want};

const WRITES_PER_GRANT: usize = 3;
const VALUE_BYTES: usize = 300;
const RUN: Duration = Duration::from_secs(3);
const RECORDS: usize = 100_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::temp_dir().join(format!("throughput-{}.db", std::process::id()));
    let argument = std::env::args().nth(1).unwrap_or_else(|| path.display().to_string());
    let store = argument.parse::<Location>()?.open()?;
    let candidacy =
        Candidacy { name: "throughput".into(), address: "here".into(), ttl: Duration::from_secs(600) };
    let Campaign::Won(leadership) = store.campaign(&candidacy)? else {
        return Err("someone else measures".into());
    };
    for batch in [1, 8, 42, 64, 256] {
        if batch * WRITES_PER_GRANT <= store.limits().writes {
            measure_grants(&*store, &leadership, batch)?;
        }
    }
    measure_listing(&*store)?;
    measure_watch(&*store)?;
    store.resign(&leadership)?;
    for end in ["", "-wal", "-shm"] {
        let _ = std::fs::remove_file(format!("{}{end}", path.display()));
    }
    Ok(())
}

fn measure_grants(
    store: &dyn Store,
    leadership: &Leadership,
    batch: usize,
) -> Result<(), Box<dyn std::error::Error>> {
    let mut times = Vec::new();
    let began = Instant::now();
    let mut number = 0;
    while began.elapsed() < RUN {
        let mut transaction = Transaction::new().when(leadership.condition());
        for _ in 0..batch {
            for kind in ["lease", "gpu", "event"] {
                // Leases and GPUs are written again and again, events are new.
                let place = if kind == "event" { number } else { number % 1000 };
                transaction =
                    transaction.put(format!("grant/{kind}/{batch}-{place:08}"), [b'x'; VALUE_BYTES]);
            }
            number += 1;
        }
        let asked_at = Instant::now();
        store.commit(&transaction)?.committed().ok_or("replaced")?;
        times.push(asked_at.elapsed());
    }
    let took = began.elapsed();
    times.sort_unstable();
    let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize];
    println!(
        "batch {batch:3}: {:6.0} grants/s, {:6.0} transactions/s, p50 {:?}, p99 {:?}",
        number as f64 / took.as_secs_f64(),
        times.len() as f64 / took.as_secs_f64(),
        at(0.5),
        at(0.99),
    );
    Ok(())
}

fn measure_listing(store: &dyn Store) -> Result<(), Box<dyn std::error::Error>> {
    let keys: Vec<usize> = (0..RECORDS).collect();
    for batch in keys.chunks(store.limits().writes.min(1000)) {
        let mut transaction = Transaction::new();
        for number in batch {
            transaction = transaction.put(format!("list/{number:08}"), [b'x'; VALUE_BYTES]);
        }
        store.commit(&transaction)?.committed().ok_or("a conflict without a condition")?;
    }
    for want in [Want::Records, Want::Keys] {
        let began = Instant::now();
        let count = store.list("list/", want)?.records()?.len();
        println!("list {count} {want:?}: {:?}", began.elapsed());
    }
    Ok(())
}

fn measure_watch(store: &dyn Store) -> Result<(), Box<dyn std::error::Error>> {
    let from = store.commit(&Transaction::new())?.committed().ok_or("a conflict without a condition")?.next();
    let watch = store.watch("watch/", from)?;
    let mut times = Vec::new();
    for number in 0..200 {
        let asked_at = Instant::now();
        store
            .commit(&Transaction::new().put("watch/a", number.to_string()))?
            .committed()
            .ok_or("a conflict without a condition")?;
        watch.recv()?;
        times.push(asked_at.elapsed());
    }
    times.sort_unstable();
    println!("put to watch: p50 {:?}, p99 {:?}", times[times.len() / 2], times[times.len() * 99 / 100]);
    Ok(())
}
