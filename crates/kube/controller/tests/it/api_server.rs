//! A stand-in of the API server, as strict as a real one where the controller can notice.
//!
//! Every write makes a revision. A write with an old resource version is refused (409). The main resource and its status
//! are written apart. An object with finalizers stays until they are gone, and takes no new ones then. A watch sends what
//! happened after a revision, and a bookmark now and then; a revision that is forgotten is answered with 410.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde_json::{Value, json};
use tokio::sync::Notify;

type Key = (String, String, String);

#[derive(Default)]
struct Objects {
    all: BTreeMap<Key, Value>,
    revision: u64,
    /// Revision, kind, what happened, the object.
    log: Vec<(u64, String, &'static str, Value)>,
    /// Revisions up to this one are forgotten.
    forgotten: u64,
    /// Watches of an older number end.
    watches: u64,
    /// Watches send nothing, as over a connection that is dead on one side.
    muted: bool,
    doubled: bool,
    /// Writes of claims that another writer is quicker with.
    interferences: usize,
    /// Writes of the status are not answered.
    stalled: bool,
    pub(crate) conflicts: usize,
    pub(crate) watches_begun: usize,
    pub(crate) lists: usize,
}

#[derive(Clone, Default)]
pub(crate) struct ApiServer {
    objects: Arc<Mutex<Objects>>,
    news: Arc<Notify>,
}

fn text<'a>(object: &'a Value, path: &str) -> &'a str {
    object.pointer(path).and_then(Value::as_str).unwrap_or_default()
}

fn failure(code: u16, reason: &str) -> Response {
    let body = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason,
        "message": reason, "metadata": {}});
    (StatusCode::from_u16(code).unwrap(), axum::Json(body)).into_response()
}

impl Objects {
    fn store(&mut self, key: Key, mut object: Value, happened: &'static str) -> Value {
        self.revision += 1;
        object["metadata"]["resourceVersion"] = json!(self.revision.to_string());
        self.log.push((self.revision, key.0.clone(), happened, object.clone()));
        self.all.insert(key, object.clone());
        object
    }

    fn remove(&mut self, key: &Key) {
        if let Some(mut object) = self.all.remove(key) {
            self.revision += 1;
            object["metadata"]["resourceVersion"] = json!(self.revision.to_string());
            self.log.push((self.revision, key.0.clone(), "DELETED", object));
        }
    }

    fn finalizers(object: &Value) -> usize {
        object.pointer("/metadata/finalizers").and_then(Value::as_array).map_or(0, Vec::len)
    }

    #[allow(clippy::result_large_err, reason = "the error is the answer that goes out")]
    fn replace(&mut self, key: &Key, sent: Value, is_status: bool) -> Result<Value, Response> {
        if key.0 == "resourceclaims" && self.interferences > 0 {
            self.interferences -= 1;
            if let Some(object) = self.all.get(key).cloned() {
                self.store(key.clone(), object, "MODIFIED");
            }
        }
        let Some(now) = self.all.get(key) else { return Err(failure(404, "NotFound")) };
        let uid = text(&sent, "/metadata/uid");
        if !uid.is_empty() && uid != text(now, "/metadata/uid") {
            return Err(failure(409, "Conflict"));
        }
        let version = text(&sent, "/metadata/resourceVersion");
        if version != text(now, "/metadata/resourceVersion") {
            self.conflicts += 1;
            return Err(failure(409, "Conflict"));
        }
        let mut next = now.clone();
        if is_status {
            next["status"] = sent["status"].clone();
            drop_unallocated(&mut next);
        } else {
            let is_deleting = now.pointer("/metadata/deletionTimestamp").is_some();
            if is_deleting && Self::finalizers(&sent) > Self::finalizers(now) {
                return Err(failure(422, "Invalid"));
            }
            next["metadata"]["finalizers"] = sent["metadata"]["finalizers"].clone();
            next["metadata"]["annotations"] = sent["metadata"]["annotations"].clone();
            next["spec"] = sent["spec"].clone();
        }
        if next.pointer("/metadata/deletionTimestamp").is_some() && Self::finalizers(&next) == 0 {
            self.remove(key);
            return Ok(next);
        }
        Ok(self.store(key.clone(), next, "MODIFIED"))
    }
}

/// A device of which a status speaks is one that is allocated.
fn drop_unallocated(claim: &mut Value) {
    let allocated: Vec<String> = claim
        .pointer("/status/allocation/devices/results")
        .and_then(Value::as_array)
        .map(|all| all.iter().map(|result| text(result, "/device").to_owned()).collect())
        .unwrap_or_default();
    if let Some(devices) = claim.pointer_mut("/status/devices").and_then(Value::as_array_mut) {
        devices.retain(|device| allocated.iter().any(|one| one == text(device, "/device")));
    }
}

type Params = Query<BTreeMap<String, String>>;

impl ApiServer {
    /// Starts it, and tells its address.
    pub(crate) fn start(runtime: &tokio::runtime::Runtime) -> (Self, String) {
        let server = Self::default();
        let app = Router::new()
            .route("/apis/{group}/v1/{kind}", get(list).post(create))
            .route("/apis/{group}/v1/{kind}/{name}", get(one).put(put).delete(delete))
            .route("/apis/{group}/v1/namespaces/{ns}/{kind}", get(list).post(create))
            .route("/apis/{group}/v1/namespaces/{ns}/{kind}/{name}", get(one).put(put).delete(delete))
            .route("/apis/{group}/v1/namespaces/{ns}/{kind}/{name}/status", get(one).put(put_status))
            .with_state(server.clone());
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        runtime.spawn(async move { axum::serve(listener, app).await });
        (server, address)
    }

    fn objects(&self) -> MutexGuard<'_, Objects> {
        self.objects.lock().unwrap()
    }

    fn key(kind: &str, name: &str) -> Key {
        let namespace = if kind == "resourceslices" { "" } else { "default" };
        (kind.to_owned(), namespace.to_owned(), name.to_owned())
    }

    pub(crate) fn get(&self, kind: &str, name: &str) -> Option<Value> {
        self.objects().all.get(&Self::key(kind, name)).cloned()
    }

    pub(crate) fn all(&self, kind: &str) -> Vec<Value> {
        let objects = self.objects();
        objects.all.iter().filter(|(key, _)| key.0 == kind).map(|(_, object)| object.clone()).collect()
    }

    /// Changes an object as another client does.
    pub(crate) fn change(&self, kind: &str, name: &str, change: impl FnOnce(&mut Value)) {
        let mut objects = self.objects();
        let key = Self::key(kind, name);
        let mut object = objects.all[&key].clone();
        change(&mut object);
        drop_unallocated(&mut object);
        if object.pointer("/metadata/deletionTimestamp").is_some() && Objects::finalizers(&object) == 0 {
            objects.remove(&key);
        } else {
            objects.store(key, object, "MODIFIED");
        }
        drop(objects);
        self.news.notify_waiters();
    }

    /// A claim that the scheduler has allocated and reserved for a pod.
    pub(crate) fn allocated_claim(&self, name: &str, devices: &[&str]) -> String {
        let uid = {
            let mut objects = self.objects();
            let uid = format!("uid-{name}-{}", objects.revision);
            let claim = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
                "metadata": {"name": name, "namespace": "default", "uid": uid}, "spec": {}});
            objects.store(Self::key("resourceclaims", name), claim, "ADDED");
            uid
        };
        self.allocate(name, devices);
        uid
    }

    pub(crate) fn allocate(&self, name: &str, devices: &[&str]) {
        let results: Vec<Value> = devices
            .iter()
            .map(|device| {
                json!({"driver": "dxpu.dev", "pool": "dxpu", "device": device, "request": "gpu",
                    "bindingConditions": ["dxpu.dev/granted"], "bindingFailureConditions": ["dxpu.dev/refused"]})
            })
            .collect();
        self.change("resourceclaims", name, |claim| {
            claim["status"] = json!({"allocation": {"devices": {"results": results}},
                "reservedFor": [{"resource": "pods", "name": "p", "uid": "p"}]});
            let mut finalizers = claim["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
            finalizers.push(json!("resource.kubernetes.io/delete-protection"));
            claim["metadata"]["finalizers"] = json!(finalizers);
        });
    }

    /// The pod is gone, and with it the allocation.
    pub(crate) fn deallocate(&self, name: &str) {
        self.change("resourceclaims", name, |claim| {
            claim["status"] = json!({});
            if let Some(finalizers) = claim["metadata"]["finalizers"].as_array_mut() {
                finalizers.retain(|one| one != "resource.kubernetes.io/delete-protection");
            }
        });
    }

    pub(crate) fn delete_claim(&self, name: &str) {
        self.change("resourceclaims", name, |claim| {
            claim["metadata"]["deletionTimestamp"] = json!("2026-11-16T12:00:00Z");
        });
    }

    /// `True`, `False`, or nothing if the condition was never written.
    pub(crate) fn condition(&self, name: &str, condition: &str) -> Option<(String, String)> {
        let claim = self.get("resourceclaims", name)?;
        let devices = claim.pointer("/status/devices")?.as_array()?.clone();
        let conditions = devices.iter().flat_map(|device| device["conditions"].as_array().cloned());
        let all: Vec<Value> = conditions.flatten().filter(|one| one["type"] == condition).collect();
        let first = all.first()?;
        assert!(all.iter().all(|one| one["status"] == first["status"]), "{all:?}");
        Some((text(first, "/status").to_owned(), text(first, "/message").to_owned()))
    }

    pub(crate) fn is(&self, name: &str, condition: &str) -> bool {
        self.condition(name, condition).is_some_and(|(status, _)| status == "True")
    }

    pub(crate) fn mute(&self, muted: bool) {
        self.objects().muted = muted;
    }

    pub(crate) fn double(&self) {
        self.objects().doubled = true;
    }

    pub(crate) fn stall_status(&self, stalled: bool) {
        self.objects().stalled = stalled;
        self.news.notify_waiters();
    }

    pub(crate) fn interfere(&self, writes: usize) {
        self.objects().interferences = writes;
    }

    /// All watches end; with `forget`, what happened until now is forgotten.
    pub(crate) fn drop_watches(&self, forget: bool) {
        let mut objects = self.objects();
        objects.watches += 1;
        if forget {
            // A write beside claims, so that the newest revision that a watcher may know is forgotten too.
            objects.revision += 1;
            objects.forgotten = objects.revision;
            objects.log.clear();
        }
        drop(objects);
        self.news.notify_waiters();
    }

    pub(crate) fn counts(&self) -> (usize, usize, usize) {
        let objects = self.objects();
        (objects.conflicts, objects.watches_begun, objects.lists)
    }
}

fn key_of(path: &BTreeMap<String, String>) -> Key {
    let part = |name: &str| path.get(name).cloned().unwrap_or_default();
    (part("kind"), part("ns"), part("name"))
}

type AnyPath = Path<BTreeMap<String, String>>;

async fn list(State(server): State<ApiServer>, Path(path): AnyPath, Query(query): Params) -> Response {
    let kind = path["kind"].clone();
    if query.get("watch").is_some_and(|watch| watch == "true" || watch == "1") {
        return watch(server, kind, &query);
    }
    let mut objects = server.objects();
    objects.lists += 1;
    let items: Vec<Value> =
        objects.all.iter().filter(|(key, _)| key.0 == kind).map(|(_, object)| object.clone()).collect();
    let body = json!({"apiVersion": "v1", "kind": "List", "items": items,
        "metadata": {"resourceVersion": objects.revision.to_string()}});
    axum::Json(body).into_response()
}

fn watch(server: ApiServer, kind: String, query: &BTreeMap<String, String>) -> Response {
    let from: u64 = query.get("resourceVersion").and_then(|text| text.parse().ok()).unwrap_or(0);
    let number = {
        let mut objects = server.objects();
        objects.watches_begun += 1;
        objects.watches
    };
    let stream = futures_util::stream::unfold((server, from, false), move |(server, mut at, ended)| {
        let kind = kind.clone();
        async move {
            if ended {
                return None;
            }
            loop {
                let news = server.news.notified();
                let mut lines = String::new();
                let is_over = {
                    let objects = server.objects();
                    if at < objects.forgotten {
                        let status = json!({"type": "ERROR", "object": {"kind": "Status", "apiVersion": "v1",
                            "status": "Failure", "code": 410, "reason": "Expired", "message": "too old"}});
                        let line = Bytes::from(format!("{status}\n"));
                        drop(objects);
                        drop(news);
                        return Some((Ok::<_, Infallible>(line), (server, at, true)));
                    }
                    if !objects.muted {
                        for (revision, of, happened, object) in &objects.log {
                            if *revision > at && *of == kind {
                                let line = format!("{}\n", json!({"type": happened, "object": object}));
                                lines.push_str(&line);
                                if objects.doubled {
                                    lines.push_str(&line);
                                }
                            }
                        }
                        if objects.revision > at {
                            at = objects.revision;
                            let bookmark = json!({"type": "BOOKMARK", "object": {"kind": "ResourceClaim",
                                "apiVersion": "resource.k8s.io/v1", "metadata": {"resourceVersion": at.to_string()}}});
                            lines.push_str(&format!("{bookmark}\n"));
                        }
                    }
                    objects.watches != number
                };
                if is_over {
                    return None;
                }
                if !lines.is_empty() {
                    drop(news);
                    return Some((Ok(Bytes::from(lines)), (server, at, false)));
                }
                // A notification may come between the look and the wait.
                let _ = tokio::time::timeout(Duration::from_millis(50), news).await;
            }
        }
    });
    Body::from_stream(stream).into_response()
}

async fn one(State(server): State<ApiServer>, Path(path): AnyPath) -> Response {
    match server.objects().all.get(&key_of(&path)) {
        Some(object) => axum::Json(object.clone()).into_response(),
        None => failure(404, "NotFound"),
    }
}

async fn create(
    State(server): State<ApiServer>,
    Path(path): AnyPath,
    axum::Json(mut object): axum::Json<Value>,
) -> Response {
    let (kind, namespace, _) = key_of(&path);
    let key = (kind, namespace, text(&object, "/metadata/name").to_owned());
    let mut objects = server.objects();
    if objects.all.contains_key(&key) {
        return failure(409, "AlreadyExists");
    }
    object["metadata"]["uid"] = json!(format!("uid-{}", objects.revision));
    let stored = objects.store(key, object, "ADDED");
    drop(objects);
    server.news.notify_waiters();
    (StatusCode::CREATED, axum::Json(stored)).into_response()
}

async fn put(
    State(server): State<ApiServer>,
    Path(path): AnyPath,
    axum::Json(object): axum::Json<Value>,
) -> Response {
    replaced(&server, &path, object, false)
}

async fn put_status(
    State(server): State<ApiServer>,
    Path(path): AnyPath,
    axum::Json(object): axum::Json<Value>,
) -> Response {
    while server.objects().stalled {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    replaced(&server, &path, object, true)
}

fn replaced(server: &ApiServer, path: &BTreeMap<String, String>, object: Value, is_status: bool) -> Response {
    let done = server.objects().replace(&key_of(path), object, is_status);
    server.news.notify_waiters();
    match done {
        Ok(object) => axum::Json(object).into_response(),
        Err(refused) => refused,
    }
}

async fn delete(State(server): State<ApiServer>, Path(path): AnyPath) -> Response {
    let key = key_of(&path);
    let mut objects = server.objects();
    if !objects.all.contains_key(&key) {
        return failure(404, "NotFound");
    }
    objects.remove(&key);
    axum::Json(json!({"kind": "Status", "apiVersion": "v1", "status": "Success", "metadata": {}}))
        .into_response()
}
