//! Leases of jobs.

use crate::operate::ask;
use crate::support::exit::{Exit, Failure};
use crate::support::pool_access::{PoolAccess, failure};
use pool_api::{ErrorCode, Lease, LeaseState};
use pool_client::{Client, ClientError, Patience};
use pool_slurm::{Job, Note};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

/// A failure here holds a job or drains a node, so a change of leader and a manager's restart are waited for.
const PATIENCE: Patience = Patience { per_try: Duration::from_secs(5), in_all: Duration::from_secs(120) };
/// How long one question for a change of a lease waits.
const ASK_FOR: Duration = Duration::from_secs(20);
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// A client for commands that Slurm runs.
pub(super) fn client(access: &PoolAccess) -> anyhow::Result<Client> {
    access.patient(PATIENCE)
}

/// All leases that wait or have GPUs and whose note is that of a job.
pub(super) fn live(client: &Client) -> Result<Vec<(Note, Lease)>, ClientError> {
    let mut found = BTreeMap::new();
    // One that is granted between the two questions is in the second answer.
    for state in ["pending", "granted"] {
        let (leases, _) = ask::all::<Lease>(client, &format!("/v1/leases?state={state}"))?;
        for lease in leases {
            if let Some(note) = Note::parse(&lease.request.note) {
                found.insert(lease.id, (note, lease));
            }
        }
    }
    Ok(found.into_values().collect())
}

/// The live leases of a job: one, unless something was interrupted.
pub(super) fn of_job(client: &Client, job: &Job) -> Result<Vec<(Note, Lease)>, ClientError> {
    Ok(live(client)?.into_iter().filter(|(note, _)| note.job == *job).collect())
}

/// As `of_job`, when a manager answers at last.
pub(super) fn of_job_at_last(client: &Client, job: &Job) -> Result<Vec<(Note, Lease)>, ClientError> {
    loop {
        match of_job(client, job) {
            Err(error) if is_passing(&error) => std::thread::sleep(ASK_AGAIN_AFTER),
            answered => return answered,
        }
    }
}

/// Waits until a lease has its GPUs, also while no manager answers. Slurm bounds the time (`StageInTimeout`).
pub(super) fn until_granted(client: &Client, mut lease: Lease) -> Result<Lease, Failure> {
    loop {
        match lease.state {
            LeaseState::Granted => return Ok(lease),
            LeaseState::Pending => {}
            LeaseState::Parked | LeaseState::Releasing | LeaseState::Ended => {
                let why = lease.ended.map_or_else(|| "it is parked".to_owned(), |ended| ended.reason);
                let what = format!("lease {} has no GPUs: {why}", lease.id);
                return Err(Failure::new(Exit::Refused, what, "submit the job again"));
            }
        }
        match client.wait_for_lease(lease.id, lease.version, ASK_FOR) {
            Ok(seen) => lease = seen,
            Err(error) if is_passing(&error) => std::thread::sleep(ASK_AGAIN_AFTER),
            Err(error) => return Err(failure(error)),
        }
    }
}

fn is_passing(error: &ClientError) -> bool {
    matches!(error, ClientError::Unreachable { .. }) || error.code() == Some(ErrorCode::Unavailable)
}

/// Gives a lease back; `None` if it was over already.
pub(super) fn give_back(client: &Client, lease: &Lease) -> Result<Option<Lease>, ClientError> {
    match client.release_lease(lease.id) {
        Ok(lease) => Ok(Some(lease)),
        Err(error) if matches!(error.code(), Some(ErrorCode::Gone | ErrorCode::NotFound)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Adds a line on a lease that is over to the usage file. The GPUs are back whether or not that works.
pub(super) fn write_usage(file: Option<&Path>, note: &Note, lease: &Lease) {
    let Some(path) = file else { return };
    // One write, so that lines of several processes do not mix.
    let written = File::options()
        .create(true)
        .append(true)
        .open(path)
        .and_then(|mut file| file.write_all(pool_slurm::usage_line(note, lease).as_bytes()));
    if let Err(error) = written {
        errln!("dxpu: the GPU seconds of job {} are not in {}: {error}", note.job.number(), path.display());
    }
}
