//! Requests, and where they go.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pool_api::{
    BoxOrders, BoxRecord, BoxReport, ErrorAnswer, ErrorCode, Gpu, HostDetail, HostOrders, HostRecord,
    HostReport, HostRequest, JoinAnswer, JoinRequest, Lease, LeaseId, LeaseRequest, LeaseTokens, Name,
    PROTOCOL, PROTOCOL_HEADER, Page, RefusalReport, RefusalsHeard, RenewRequest, ReturnRequest,
};
use pool_auth::{Credential, Identity, Secret};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::dial::Place;
use crate::error::{ClientError, Silence, certificate_problem};
use crate::managers::Managers;

/// For how long something is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// How long one manager may take to answer, waiting apart. Where there are others to ask, less at first.
    pub per_try: Duration,
    /// How long in all.
    pub in_all: Duration,
}

impl Default for Patience {
    /// A change of leader takes less than five seconds.
    fn default() -> Self {
        Self { per_try: Duration::from_secs(5), in_all: Duration::from_secs(15) }
    }
}

impl Patience {
    /// One round over all managers, for callers that come back by themselves.
    pub const ONCE: Self = Self { per_try: Duration::from_secs(3), in_all: Duration::ZERO };
}

/// Speaks to the managers of a pool.
pub struct Client {
    credential: Credential,
    patience: Patience,
    managers: Mutex<Managers>,
    /// Gives up at once when nothing runs at any of the addresses.
    gives_up_when_absent: bool,
    /// Tells the user once that no manager answers yet.
    teller: Option<Teller>,
    is_told: AtomicBool,
}

/// Tells a user something.
pub type Teller = fn(&str);

impl Client {
    /// For a client with an identity of its own.
    pub fn new(credential: Credential, patience: Patience) -> Result<Self, ClientError> {
        if credential.managers.is_empty() {
            return Err(ClientError::Settings("no manager is named".to_owned()));
        }
        let managers = Mutex::new(Managers::of(&credential)?);
        let (gives_up_when_absent, teller, is_told) = (false, None, AtomicBool::new(false));
        Ok(Self { credential, patience, managers, gives_up_when_absent, teller, is_told })
    }

    /// The same, but gives up at once when every manager refuses the connection or has a name that is not known: a user
    /// waits for nothing where no manager runs.
    pub fn giving_up_when_absent(self) -> Self {
        Self { gives_up_when_absent: true, ..self }
    }

    /// The same, and tells the user once when managers refuse, or none has answered for [`TOLD_AFTER`].
    pub fn telling(self, teller: Teller) -> Self {
        Self { teller: Some(teller), ..self }
    }

    /// For a machine that has only a join token and the authority's certificate.
    pub fn to_join(managers: Vec<String>, authority_pem: String) -> Result<Self, ClientError> {
        let identity = Identity::Viewer("joining".to_owned());
        let credential = Credential {
            managers,
            authority: authority_pem,
            identity,
            token: None,
            certificate: None,
            key: None,
        };
        Self::new(credential, Patience::default())
    }

    /// The identity, the managers and the proof that this client uses.
    pub fn credential(&self) -> &Credential {
        &self.credential
    }

    /// Gets something.
    pub fn get<A: DeserializeOwned>(&self, path: &str, wait: Duration) -> Result<A, ClientError> {
        self.send("GET", path, None, None, wait)
    }

    /// Posts something. Without an idempotency key it must be harmless to do it twice.
    pub fn post<A: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
        idempotency_key: Option<&str>,
        wait: Duration,
    ) -> Result<A, ClientError> {
        self.send("POST", path, Some(json(body)?), idempotency_key, wait)
    }

    /// Posts nothing.
    pub fn post_empty<A: DeserializeOwned>(&self, path: &str) -> Result<A, ClientError> {
        self.send("POST", path, Some(Vec::new()), None, Duration::ZERO)
    }

    /// Puts something.
    pub fn put<A: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<A, ClientError> {
        self.send("PUT", path, Some(json(body)?), None, Duration::ZERO)
    }

    /// Deletes something.
    pub fn delete<A: DeserializeOwned>(&self, path: &str) -> Result<A, ClientError> {
        self.send("DELETE", path, None, None, Duration::ZERO)
    }

    /// Text that is not JSON, such as `/metrics`.
    pub fn get_text(&self, path: &str) -> Result<String, ClientError> {
        let bytes = self.send_raw("GET", path, None, None, Duration::ZERO)?;
        String::from_utf8(bytes).map_err(|error| ClientError::Answer(error.into()))
    }

    fn send<A: DeserializeOwned>(
        &self,
        method: &str,
        path: &str,
        body: Option<Vec<u8>>,
        idempotency_key: Option<&str>,
        wait: Duration,
    ) -> Result<A, ClientError> {
        let bytes = self.send_raw(method, path, body, idempotency_key, wait)?;
        serde_json::from_slice(&bytes).map_err(|error| ClientError::Answer(error.into()))
    }

    fn send_raw(
        &self,
        method: &str,
        path: &str,
        body: Option<Vec<u8>>,
        idempotency_key: Option<&str>,
        wait: Duration,
    ) -> Result<Vec<u8>, ClientError> {
        let Some(teller) = self.teller.filter(|_| !self.is_told.load(Ordering::Relaxed)) else {
            return self.send_patiently(method, path, body, idempotency_key, wait);
        };
        let (over, is_over) = std::sync::mpsc::channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                if is_over.recv_timeout(TOLD_AFTER + wait) == Err(std::sync::mpsc::RecvTimeoutError::Timeout)
                {
                    self.tell_once(teller, "the manager of the pool does not answer yet");
                }
            });
            let answer = self.send_patiently(method, path, body, idempotency_key, wait);
            drop(over);
            answer
        })
    }

    fn tell_once(&self, teller: Teller, what: impl std::fmt::Display) {
        if !self.is_told.swap(true, Ordering::Relaxed) {
            let (tried, seconds) = (self.credential.managers.join(", "), self.patience.in_all.as_secs());
            teller(&format!("{what} ({tried}); trying for {seconds} s"));
        }
    }

    fn send_patiently(
        &self,
        method: &str,
        path: &str,
        body: Option<Vec<u8>>,
        idempotency_key: Option<&str>,
        wait: Duration,
    ) -> Result<Vec<u8>, ClientError> {
        let began = Instant::now();
        let (mut tries, mut absent) = (0, 0);
        loop {
            let (place, agent, count, allowance) = self.managers().current();
            let timeout = self.patience.per_try.min(allowance) + wait;
            let body = body.as_deref();
            let sent =
                send_once(&agent, &place, &self.credential, method, path, body, idempotency_key, timeout);
            tries += 1;
            if sent.is_ok() {
                self.managers().answered(&place);
            }
            absent = if sent.as_ref().is_err_and(is_absent) { absent + 1 } else { 0 };
            let mut is_sent_on = false;
            let failure = match sent {
                Ok(Reply::Answer(bytes)) => return Ok(bytes),
                Ok(Reply::Refused(answer)) if answer.error.code.is_retryable() => {
                    tracing::debug!(place = place.0, code = ?answer.error.code, "a manager asks to try again later or at the leader");
                    let is_elsewhere = answer.error.code == ErrorCode::NotLeader;
                    let leader = Place::parse(&answer.error.hint).ok().filter(|_| is_elsewhere);
                    let is_there = |place| self.managers().go_to(place, &self.credential, Instant::now());
                    is_sent_on = leader.is_some_and(is_there);
                    // Two that send us to each other are asked again, but not without a pause.
                    if is_sent_on && tries <= count {
                        continue;
                    }
                    ClientError::Refused(answer.error)
                }
                Ok(Reply::Refused(answer)) => return Err(ClientError::Refused(answer.error)),
                Err(error) => {
                    tracing::debug!(place = place.0, %error, "a manager does not answer; the client tries the next");
                    if matches!(error, ureq::Error::Timeout(_)) {
                        self.managers().was_silent(&place, Instant::now());
                    }
                    self.unreachable(error)
                }
            };
            if absent >= count && self.gives_up_when_absent {
                return Err(failure);
            }
            if let (true, Some(teller), ClientError::Unreachable { why, .. }) =
                (absent >= count, self.teller, &failure)
            {
                self.tell_once(teller, why);
            }
            if !is_sent_on {
                self.managers().go_on(&place, Instant::now());
            }
            if tries >= count && began.elapsed() >= self.patience.in_all {
                return Err(failure);
            }
            if tries.is_multiple_of(count) {
                std::thread::sleep(RETRY_PAUSE);
            }
        }
    }

    fn managers(&self) -> MutexGuard<'_, Managers> {
        self.managers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unreachable(&self, error: ureq::Error) -> ClientError {
        if let Some((what, is_over)) = certificate_problem(&error) {
            return ClientError::Certificate { what: what.to_owned(), is_over, source: error.into() };
        }
        let why = match &error {
            ureq::Error::HostNotFound => Silence::NoSuchHost,
            error if is_absent(error) => Silence::Refused,
            _ => Silence::NoAnswer,
        };
        ClientError::Unreachable { tried: self.credential.managers.join(", "), why, source: error.into() }
    }
}

/// Whether nothing runs where a manager was looked for.
fn is_absent(error: &ureq::Error) -> bool {
    match error {
        ureq::Error::HostNotFound => true,
        ureq::Error::Io(error) => error.kind() == std::io::ErrorKind::ConnectionRefused,
        _ => false,
    }
}

/// A user that waits longer than this for a manager is told so.
pub const TOLD_AFTER: Duration = Duration::from_millis(1500);

/// How long one question may wait for news of a lease.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// Between rounds over all managers.
const RETRY_PAUSE: Duration = Duration::from_millis(200);

/// More than any answer has, metrics of a hundred thousand GPUs included.
const ANSWER_BYTES_MAX: u64 = 256 << 20;

enum Reply {
    Answer(Vec<u8>),
    Refused(ErrorAnswer),
}

#[allow(clippy::too_many_arguments, reason = "each is one part of one HTTP request")]
fn send_once(
    agent: &ureq::Agent,
    place: &Place,
    credential: &Credential,
    method: &str,
    path: &str,
    body: Option<&[u8]>,
    idempotency_key: Option<&str>,
    timeout: Duration,
) -> Result<Reply, ureq::Error> {
    let mut request = ureq::http::Request::builder().method(method).uri(place.url(path));
    request = request.header(PROTOCOL_HEADER, PROTOCOL.to_string());
    if let Some(token) = &credential.token {
        request = request.header("authorization", format!("Bearer {}", token.reveal()));
    }
    if let Some(key) = idempotency_key {
        request = request.header("idempotency-key", key);
    }
    let response = match body {
        Some(body) => {
            let request =
                request.header("content-type", "application/json").body(body).map_err(ureq::Error::Http)?;
            agent.run(agent.configure_request(request).timeout_global(Some(timeout)).build())
        }
        None => {
            let request = request.body(()).map_err(ureq::Error::Http)?;
            agent.run(agent.configure_request(request).timeout_global(Some(timeout)).build())
        }
    };
    let mut response = response?;
    let is_success = response.status().is_success();
    let bytes = response.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_vec()?;
    if is_success {
        return Ok(Reply::Answer(bytes));
    }
    let theirs = response.headers().get(PROTOCOL_HEADER).and_then(|value| value.to_str().ok()?.parse().ok());
    let answer = serde_json::from_slice(&bytes).unwrap_or_else(|_| {
        let message = format!("the manager answered with status {}", response.status());
        ErrorAnswer::new(ErrorCode::Unavailable, message, "check that this is a manager of dxpu")
    });
    Ok(Reply::Refused(of_older_manager(answer, theirs)))
}

/// A manager of an older version refuses what it does not know without a word about versions. Managers from before there
/// were protocol versions speak the first one.
fn of_older_manager(mut answer: ErrorAnswer, theirs: Option<u32>) -> ErrorAnswer {
    let theirs = theirs.unwrap_or(1);
    if answer.error.code == ErrorCode::BadRequest
        && theirs < PROTOCOL
        && answer.error.message.contains("unknown field")
    {
        answer.error.hint = format!(
            "the manager is older than this dxpu (protocol {theirs}, here {PROTOCOL}): upgrade the managers first"
        );
    }
    answer
}

fn json(body: &impl Serialize) -> Result<Vec<u8>, ClientError> {
    serde_json::to_vec(body)
        .map_err(|error| ClientError::Settings(format!("cannot write the request: {error}")))
}

/// Text as a part of a URL's query.
fn as_query_value(text: &str) -> String {
    let mut value = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            value.push(char::from(byte));
        } else {
            value.push_str(&format!("%{byte:02X}"));
        }
    }
    value
}

/// What boxes, hosts and borrowers ask.
impl Client {
    /// Joins with a one-time token, as the box or host that the token names. The key stays here.
    pub fn join(&self, name: &Name, token: &Secret, request_pem: &str) -> Result<JoinAnswer, ClientError> {
        let request = JoinRequest {
            name: name.clone(),
            token: token.reveal().to_owned(),
            certificate_request: request_pem.to_owned(),
        };
        self.post("/v1/join", &request, None, Duration::ZERO)
    }

    /// A new certificate for the same name.
    pub fn renew_certificate(&self, request_pem: &str) -> Result<JoinAnswer, ClientError> {
        let request = RenewRequest { certificate_request: request_pem.to_owned() };
        self.post("/v1/certificate", &request, None, Duration::ZERO)
    }

    /// A new certificate for a member whose last one ended while it was off. Its key is the proof.
    pub fn return_member(&self, identity: &Identity, request_pem: &str) -> Result<JoinAnswer, ClientError> {
        let request =
            ReturnRequest { identity: identity.to_string(), certificate_request: request_pem.to_owned() };
        self.post("/v1/certificate/return", &request, None, Duration::ZERO)
    }

    /// Tells how a box is, and may wait for news.
    pub fn report(&self, name: &Name, report: &BoxReport, wait: Duration) -> Result<BoxOrders, ClientError> {
        let path = format!("/v1/boxes/{name}/report?wait_ms={}", wait.as_millis());
        self.post(&path, report, None, wait)
    }

    /// Tells how a host is, and may wait for news.
    pub fn report_host(
        &self,
        name: &Name,
        report: &HostReport,
        wait: Duration,
    ) -> Result<HostOrders, ClientError> {
        let path = format!("/v1/hosts/{name}/report?wait_ms={}", wait.as_millis());
        self.post(&path, report, None, wait)
    }

    /// Every host, by name.
    pub fn hosts(&self) -> Result<Vec<HostRecord>, ClientError> {
        self.all("/v1/hosts?limit=1000")
    }

    /// Every GPU, by name.
    pub fn gpus(&self) -> Result<Vec<Gpu>, ClientError> {
        self.all("/v1/gpus?limit=1000")
    }

    /// Every box, by name.
    pub fn boxes(&self) -> Result<Vec<BoxRecord>, ClientError> {
        self.all("/v1/boxes?limit=1000")
    }

    /// Every lease that the caller may see, those that are over included as long as the manager knows them.
    pub fn leases(&self) -> Result<Vec<Lease>, ClientError> {
        self.all("/v1/leases?limit=1000")
    }

    /// The same, only with this label.
    pub fn leases_labelled(&self, label: &str) -> Result<Vec<Lease>, ClientError> {
        self.all(&format!("/v1/leases?limit=1000&label={}", as_query_value(label)))
    }

    /// All pages of a list. `path` has a query already.
    fn all<T: DeserializeOwned>(&self, path: &str) -> Result<Vec<T>, ClientError> {
        let mut all = Vec::new();
        let mut after = String::new();
        loop {
            let page: Page<T> = self.get(&format!("{path}{after}"), Duration::ZERO)?;
            all.extend(page.items);
            let Some(next) = page.next else { return Ok(all) };
            after = format!("&after={}", as_query_value(&next));
        }
    }

    /// One host with its slots.
    pub fn host(&self, name: &Name) -> Result<HostDetail, ClientError> {
        self.get(&format!("/v1/hosts/{name}"), Duration::ZERO)
    }

    /// Sets the tenants that may plug leases into a host.
    pub fn set_host_tenants(&self, name: &Name, tenants: &[Name]) -> Result<HostRecord, ClientError> {
        self.put(&format!("/v1/hosts/{name}"), &HostRequest { tenants: tenants.to_vec() })
    }

    /// Reports the borrowers that a box has turned away.
    pub fn tell_refusals(&self, name: &Name, report: &RefusalReport) -> Result<RefusalsHeard, ClientError> {
        self.post(&format!("/v1/boxes/{name}/refusals"), report, None, Duration::ZERO)
    }

    /// Asks for GPUs.
    pub fn create_lease(&self, request: &LeaseRequest, idempotency_key: &str) -> Result<Lease, ClientError> {
        self.post("/v1/leases", request, Some(idempotency_key), Duration::ZERO)
    }

    /// Shows a lease once it is no longer at `version`, or after a while. Renews it.
    ///
    /// The while is short, however long the caller would wait: a manager that is frozen meanwhile says
    /// nothing, and only a client that asks again hears that another leads.
    pub fn wait_for_lease(&self, id: LeaseId, version: u64, wait: Duration) -> Result<Lease, ClientError> {
        let wait = wait.min(LONGEST_WAIT);
        self.get(&format!("/v1/leases/{id}?version={version}&wait_ms={}", wait.as_millis()), wait)
    }

    /// Says that the borrower lives.
    pub fn renew_lease(&self, id: LeaseId) -> Result<Lease, ClientError> {
        self.post_empty(&format!("/v1/leases/{id}/renew"))
    }

    /// Gives a lease back.
    pub fn release_lease(&self, id: LeaseId) -> Result<Lease, ClientError> {
        self.delete(&format!("/v1/leases/{id}"))
    }

    /// What opens the GPUs of a lease.
    pub fn lease_tokens(&self, id: LeaseId) -> Result<LeaseTokens, ClientError> {
        self.get(&format!("/v1/leases/{id}/tokens"), Duration::ZERO)
    }

    /// What opens the GPUs of a lease for one of several programs that share it: it may use so much memory of each.
    pub fn part_tokens(
        &self,
        id: LeaseId,
        part: &Name,
        memory_bytes: u64,
    ) -> Result<LeaseTokens, ClientError> {
        self.get(&format!("/v1/leases/{id}/tokens?part={part}&memory_bytes={memory_bytes}"), Duration::ZERO)
    }
}
