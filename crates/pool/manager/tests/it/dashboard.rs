//! The dashboard's session and its history, as a browser and a forger speak to the manager.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use pool_api::{AccessKind, LeaseRequest, RevocationRequest};
use serde_json::Value;

use crate::bed::{Bed, HANG};
use crate::strangers::plain;

/// An answer: its status, its cookie, its body.
struct Answer {
    status: u16,
    cookie: Option<String>,
    body: Value,
}

impl Answer {
    fn message(&self) -> &str {
        self.body["error"]["message"].as_str().unwrap_or_default()
    }
}

/// Sends one request with these headers.
fn send(bed: &Bed, request: &str, headers: &[(&str, &str)]) -> Answer {
    let mut text = format!("{request} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n", host(bed));
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    text.push_str("Content-Length: 0\r\n\r\n");
    let mut stream = plain(bed);
    stream.write_all(text.as_bytes()).unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8(answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    let header = |name: &str| {
        let lines = head.lines().filter_map(|line| line.split_once(':'));
        lines
            .filter(|(key, _)| key.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.trim().to_owned())
            .next()
    };
    Answer {
        status: head.split(' ').nth(1).unwrap().parse().unwrap(),
        cookie: header("set-cookie"),
        body: serde_json::from_str(body).unwrap_or_default(),
    }
}

fn host(bed: &Bed) -> String {
    bed.manager.address().to_string()
}

/// A browser that is logged in: its cookie, and its token against forged requests.
struct Browser {
    cookie: String,
    csrf: String,
    origin: String,
}

fn log_in(bed: &Bed, token: &str) -> Browser {
    let answer = send(bed, "POST /v1/session", &[("Authorization", &format!("Bearer {token}"))]);
    assert_eq!(answer.status, 200, "{}", answer.body);
    let cookie = answer.cookie.unwrap();
    for rule in ["Secure", "HttpOnly", "SameSite=Strict", "Path=/"] {
        assert!(cookie.contains(rule), "{cookie}");
    }
    Browser {
        cookie: cookie.split(';').next().unwrap().to_owned(),
        csrf: answer.body["csrf"].as_str().unwrap().to_owned(),
        origin: format!("https://{}", host(bed)),
    }
}

fn token(bed: &Bed, identity: &str, ttl_ms: u64) -> String {
    bed.token(AccessKind::User, &format!("spiffe://dxpu/{identity}"), ttl_ms).reveal().to_owned()
}

fn lease(bed: &Bed, tenant: &str) -> String {
    let client = bed.user(&format!("spiffe://dxpu/tenant/{tenant}/ada"));
    let request = LeaseRequest { ttl_ms: 3_600_000, ..LeaseRequest::default() };
    let lease: pool_api::Lease = client.post("/v1/leases", &request, None, Duration::ZERO).unwrap();
    lease.id.to_string()
}

/// What a page of another site can have the browser of a logged-in operator send, and what comes of it.
#[test]
fn a_forged_request_changes_nothing_and_our_own_page_may() {
    let bed = Bed::make();
    bed.join("rack1-a", 2).turn();
    let id = lease(&bed, "vision");
    let admin = log_in(&bed, bed.admin.credential().token.as_ref().unwrap().reveal());
    let delete = format!("DELETE /v1/leases/{id}");
    let cookie = ("Cookie", admin.cookie.as_str());
    let origin = ("Origin", admin.origin.as_str());
    let csrf = ("X-Dxpu-Csrf", admin.csrf.as_str());
    let other_login = log_in(&bed, bed.admin.credential().token.as_ref().unwrap().reveal());
    let forgeries: [(&str, Vec<(&str, &str)>); 6] = [
        ("the cookie alone", vec![cookie]),
        ("another page's form", vec![cookie, ("Origin", "https://evil.example")]),
        ("another page that has read the hash", vec![cookie, ("Origin", "https://evil.example"), csrf]),
        ("our address without the hash", vec![cookie, origin]),
        ("the hash of another login", vec![cookie, origin, ("X-Dxpu-Csrf", other_login.csrf.as_str())]),
        (
            "a browser that says another site sent it",
            vec![cookie, origin, csrf, ("Sec-Fetch-Site", "cross-site")],
        ),
    ];
    for (what, headers) in &forgeries {
        let answer = send(&bed, &delete, headers);
        assert_eq!(answer.status, 403, "{what}: {}", answer.body);
        assert!(answer.message().contains("did not come from the dashboard"), "{what}: {}", answer.message());
        assert!(answer.body["error"]["hint"].as_str().unwrap().contains("open the dashboard"), "{what}");
    }
    let live = send(&bed, "GET /v1/leases", &[cookie]);
    assert_eq!(live.body["items"][0]["state"], "granted", "{}", live.body);
    let done = send(&bed, &delete, &[cookie, origin, csrf, ("Sec-Fetch-Site", "same-origin")]);
    assert_eq!((done.status, done.body["id"].as_str()), (200, Some(id.as_str())), "{}", done.body);
    let read = send(&bed, "GET /v1/leases", &[cookie, ("Sec-Fetch-Site", "cross-site")]);
    assert_eq!(read.status, 403, "no other site reads with it either");
    let out = send(&bed, "DELETE /v1/session", &[cookie, ("Origin", "https://evil.example")]);
    assert_eq!((out.status, out.cookie), (403, None), "nor logs out");
    let out = send(&bed, "DELETE /v1/session", &[cookie, origin, csrf]);
    assert_eq!((out.status, &out.body["logged_in"]), (200, &Value::Bool(false)));
    assert!(out.cookie.unwrap().contains("Max-Age=0"));
}

#[test]
fn a_session_may_what_its_token_may_and_ends_with_it() {
    let bed = Bed::make();
    let viewer = log_in(&bed, &token(&bed, "viewer/wall", 3_600_000));
    let cookie = ("Cookie", viewer.cookie.as_str());
    let shown = send(&bed, "GET /v1/session", &[cookie]);
    assert_eq!(
        (shown.body["role"].as_str(), shown.body["csrf"].as_str()),
        (Some("viewer"), Some(viewer.csrf.as_str()))
    );
    assert_eq!(shown.body["may"]["operate"], false);
    let headers = [cookie, ("Origin", viewer.origin.as_str()), ("X-Dxpu-Csrf", viewer.csrf.as_str())];
    let refused = send(&bed, "POST /v1/boxes/rack1-a/undrain", &headers);
    assert_eq!((refused.status, refused.message()), (403, "a viewer may not do this"));
    let request =
        RevocationRequest { reason: "lost".into(), ..RevocationRequest::of("spiffe://dxpu/viewer/wall") };
    let _: Value = bed.admin.post("/v1/revocations", &request, None, Duration::ZERO).unwrap();
    let over = send(&bed, "GET /v1/session", &[cookie]);
    assert!(over.status == 403 && over.message().contains("was revoked by"), "{}", over.body);
}

#[test]
fn the_login_says_what_is_wrong_with_a_token() {
    let bed = Bed::make();
    let try_it =
        |token: &str| send(&bed, "POST /v1/session", &[("Authorization", &format!("Bearer {token}"))]);
    assert!(try_it("dxpu-nonsense").message().contains("is not a token of dxpu"));
    let unknown = try_it("dxpu-user.0011223344556677.AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA");
    assert_eq!((unknown.status, unknown.message()), (401, "this token is not known"));
    let join = bed.token(AccessKind::Join, "spiffe://dxpu/box/rack1-a", 3_600_000);
    assert!(try_it(join.reveal()).message().contains("of the other kind"));

    let revoked = token(&bed, "viewer/lost", 3_600_000);
    let request =
        RevocationRequest { reason: "lost".into(), ..RevocationRequest::of("spiffe://dxpu/viewer/lost") };
    let _: Value = bed.admin.post("/v1/revocations", &request, None, Duration::ZERO).unwrap();
    // The record of the token goes with a later commit; what is said of it stays.
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(200));
        let answer = try_it(&revoked);
        assert!(answer.status == 403 && answer.message().ends_with(": lost"), "{}", answer.body);
    }

    let short = token(&bed, "viewer/short", 1000);
    std::thread::sleep(Duration::from_millis(1100));
    assert_eq!(try_it(&short).message(), "this token has expired");
    assert_eq!(
        try_it(bed.admin.credential().token.as_ref().unwrap().reveal()).status,
        200,
        "a right one starts anew"
    );

    for _ in 0..10 {
        assert_eq!(try_it("dxpu-nonsense").status, 401);
    }
    let closed = try_it(bed.admin.credential().token.as_ref().unwrap().reveal());
    assert_eq!(closed.status, 429, "{}", closed.body);
    assert!(closed.message().contains("too many logins"), "{}", closed.body);
    assert_eq!(send(&bed, "POST /v1/session", &[]).status, 429);
    let token = bed.admin.credential().token.as_ref().unwrap().reveal().to_owned();
    let other = send(&bed, "GET /v1/whoami", &[("Authorization", &format!("Bearer {token}"))]);
    assert_eq!(other.status, 200, "programs are not concerned");
}

fn history(client: &pool_client::Client, query: &str) -> Value {
    client.get(&format!("/v1/history{query}"), Duration::ZERO).unwrap()
}

#[test]
fn history_is_kept_and_shown_to_each_as_they_may_see_it() {
    let bed = Bed::make();
    let mut gpu_box = bed.join("rack1-a", 4);
    gpu_box.turn();
    let _ = lease(&bed, "vision");
    let began = Instant::now();
    // The manager looks every ten seconds.
    let answer = loop {
        let answer = history(&bed.admin, "?span=hour");
        if answer["tenants"].as_array().is_some_and(|tenants| !tenants.is_empty()) {
            break answer;
        }
        assert!(began.elapsed() < HANG, "{answer}");
        let _ = gpu_box.try_report();
        std::thread::sleep(Duration::from_millis(200));
    };
    let last = answer["points"].as_array().unwrap().last().unwrap().clone();
    assert_eq!((last["gpus"].as_f64(), last["leased"].as_f64()), (Some(4.0), Some(1.0)), "{last}");
    assert_eq!((last["free"].as_f64(), last["waiting"].as_f64()), (Some(3.0), Some(0.0)), "{last}");
    assert_eq!((&last["utilization_pct"], &last["sm_activity_pct"]), (&7.0.into(), &37.0.into()), "{last}");
    assert!(answer["since_ms"].as_u64().unwrap() <= answer["now_ms"].as_u64().unwrap());

    let ada = bed.user("spiffe://dxpu/tenant/vision/ada");
    let own = history(&ada, "?span=hour&tenant=vision");
    let own = own["points"].as_array().unwrap().last().unwrap();
    assert_eq!((own["leased"].as_f64(), own["utilization_pct"].as_f64()), (Some(1.0), Some(7.0)), "{own}");
    assert_eq!(own["sm_activity_pct"], 37.0, "{own}");
    assert!(own.get("free").is_none(), "{own}");
    let totals = history(&ada, "?span=hour");
    let totals = totals["points"].as_array().unwrap().last().unwrap();
    assert_eq!(totals["free"], 3.0);
    for hidden in ["utilization_pct", "sm_activity_pct", "memory_used_bytes", "waiting", "reasons"] {
        assert!(totals.get(hidden).is_none(), "{hidden}: {totals}");
    }
    let bob = bed.user("spiffe://dxpu/tenant/search/bob");
    assert!(bob.get::<Value>("/v1/history?tenant=vision", Duration::ZERO).is_err());
    assert_eq!(history(&bob, "")["tenants"], Value::Array(Vec::new()), "names of others are not for them");
}
