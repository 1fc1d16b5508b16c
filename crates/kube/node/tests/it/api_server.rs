//! The part of an API server that the plugin asks: claims by name.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::get;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

type Shown = Arc<Mutex<HashMap<String, Value>>>;

pub(crate) struct ApiServer {
    shown: Shown,
    pub(crate) url: String,
    runtime: tokio::runtime::Runtime,
}

impl ApiServer {
    pub(crate) fn start() -> Self {
        let shown = Shown::default();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let path = "/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/{name}";
        let app = axum::Router::new().route(path, get(show)).with_state(shown.clone());
        runtime.spawn(async move { axum::serve(listener, app).await });
        Self { shown, url, runtime }
    }

    /// A claim with one device for each of these requests: `(request, device)`.
    pub(crate) fn put(&self, name: &str, uid: &str, devices: &[(&str, &str)]) {
        let result = |(request, device): &(&str, &str)| json!({"request": request, "driver": "dxpu.dev", "pool": "dxpu", "device": device});
        let mut results: Vec<Value> = devices.iter().map(result).collect();
        // Of another driver: not ours to prepare.
        results.push(json!({"request": "nic", "driver": "nic.example.com", "pool": "n", "device": "eth0"}));
        let claim = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": "ml", "uid": uid},
            "spec": {"devices": {"requests": []}},
            "status": {"allocation": {"devices": {"results": results}}},
        });
        self.shown.lock().unwrap().insert(name.to_owned(), claim);
    }

    pub(crate) fn delete(&self, name: &str) {
        self.shown.lock().unwrap().remove(name);
    }

    /// No answer any more.
    pub(crate) fn stop(self) {
        self.runtime.shutdown_background();
    }
}

async fn show(
    headers: axum::http::HeaderMap,
    State(shown): State<Shown>,
    Path((namespace, name)): Path<(String, String)>,
) -> (StatusCode, Json<Value>) {
    if headers.get("authorization").is_none_or(|word| word != "Bearer service-account") {
        return (StatusCode::UNAUTHORIZED, Json(json!({"message": "Unauthorized"})));
    }
    match shown.lock().unwrap().get(&name).filter(|_| namespace == "ml") {
        Some(claim) => (StatusCode::OK, Json(claim.clone())),
        None => {
            let status = json!({
                "apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure", "reason": "NotFound",
                "message": format!("resourceclaims {name:?} not found"), "code": 404,
            });
            (StatusCode::NOT_FOUND, Json(status))
        }
    }
}
