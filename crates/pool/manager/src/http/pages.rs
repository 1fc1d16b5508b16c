//! The dashboard: files below `/`, for every client that can connect. What they show they ask of the API,
//! with the session of their user; the files themselves hold nothing.

use axum::Router;
use axum::extract::{Path, State};
use axum::http::header;
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;

use super::Api;
use super::errors::no_such_path;

/// Only our own files run, only this manager is asked, and no other page can embed this one.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

macro_rules! file {
    ($name:literal, $kind:expr) => {
        File {
            name: $name,
            kind: $kind,
            content: include_str!(concat!("../../../../../apps/dashboard/", $name)),
        }
    };
}

struct File {
    name: &'static str,
    kind: &'static str,
    content: &'static str,
}

static INDEX: File = file!("index.html", HTML);

/// What the page asks for, below `/dashboard/`.
static FILES: [File; 16] = [
    file!("style.css", "text/css; charset=utf-8"),
    file!("icon.svg", "image/svg+xml"),
    file!("main.js", SCRIPT),
    file!("actions.js", SCRIPT),
    file!("api.js", SCRIPT),
    file!("chart.js", SCRIPT),
    file!("detail.js", SCRIPT),
    file!("dom.js", SCRIPT),
    file!("events.js", SCRIPT),
    file!("filter.js", SCRIPT),
    file!("history.js", SCRIPT),
    file!("leases.js", SCRIPT),
    file!("session.js", SCRIPT),
    file!("theme.js", SCRIPT),
    file!("topology.js", SCRIPT),
    file!("words.js", SCRIPT),
];

pub(super) fn routes() -> Router<Api> {
    Router::new().route("/", get(index)).route("/dashboard/{name}", get(file))
}

/// The page of the manager that leads: a browser asks only the server from which it got its page.
async fn index(State(api): State<Api>) -> Response {
    match api.status.leader().filter(|_| !api.status.is_leading()) {
        Some(leader) => Redirect::temporary(&format!("{leader}/")).into_response(),
        None => INDEX.answer(),
    }
}

async fn file(Path(name): Path<String>) -> Response {
    match FILES.iter().find(|file| file.name == name) {
        Some(file) => file.answer(),
        None => no_such_path().await.into_response(),
    }
}

impl File {
    fn answer(&self) -> Response {
        let headers = [
            (header::CONTENT_TYPE, self.kind),
            (header::CONTENT_SECURITY_POLICY, POLICY),
            (header::REFERRER_POLICY, "no-referrer"),
            // A manager that was replaced by a newer one must not be seen through an older page.
            (header::CACHE_CONTROL, "no-cache"),
        ];
        (headers, self.content).into_response()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_that_is_asked_for_is_there_and_nothing_comes_from_elsewhere() {
        let names: Vec<&str> = FILES.iter().map(|file| file.name).collect();
        for file in FILES.iter().chain([&INDEX]) {
            for (marker, end) in [("from \"./", '"'), ("\"/dashboard/", '"')] {
                for asked in file.content.split(marker).skip(1) {
                    let asked = asked.split(end).next().unwrap();
                    assert!(names.contains(&asked), "{} asks for {asked}", file.name);
                }
            }
            let foreign = file.content.replace("http://www.w3.org/2000/svg", "");
            assert!(!foreign.contains("http://") && !foreign.contains("https://"), "{}", file.name);
            assert!(!file.content.contains("innerHTML"), "{}: text must stay text", file.name);
        }
        assert!(
            !INDEX.content.contains("style=") && !INDEX.content.contains("onclick="),
            "the policy forbids it"
        );
    }
}
