//! What a tenant is promised holds against tenants that ask for everything.

use std::time::Duration;

use pool_api::{
    Counters, ErrorCode, IdleLease, LeaseRequest, LeaseState, Model, Quota, TenantRecord, TenantRequest,
    TenantTimes,
};
use pool_client::{Client, idempotency_key};

use crate::bed::Bed;

#[test]
fn priority_and_time_are_what_operators_allow_and_guarantees_come_first() {
    let bed = Bed::make();
    let mut gpu_box = bed.join("rack1-a", 1);
    gpu_box.turn();
    let greedy = bed.user("spiffe://dxpu/tenant/greedy/eve");
    let promised = bed.user("spiffe://dxpu/tenant/promised/ada");
    let quotas = [(Model::new("H200").unwrap(), Quota { guaranteed: 1, limit: None })].into();
    let promise = TenantRequest { quotas, ..TenantRequest::default() };
    bed.admin.put::<TenantRecord>("/v1/tenants/promised", &promise).unwrap();

    // The attack: the highest priority, for a week.
    let urgent = LeaseRequest { priority: 1000, ..LeaseRequest::default() };
    let refused = greedy.create_lease(&urgent, &idempotency_key()).unwrap_err();
    assert_eq!(refused.code(), Some(ErrorCode::Forbidden), "{refused}");
    assert!(refused.to_string().contains("100 at most"), "{refused}");
    let week = LeaseRequest { ttl_ms: 7 * 24 * 3_600_000, ..LeaseRequest::default() };
    assert_eq!(
        greedy.create_lease(&week, &idempotency_key()).unwrap_err().code(),
        Some(ErrorCode::Forbidden)
    );
    let own = greedy.put::<TenantRecord>("/v1/tenants/greedy", &TenantRequest::default());
    assert_eq!(own.unwrap_err().code(), Some(ErrorCode::Forbidden), "nobody raises its own ceiling");

    // Also where an operator has allowed it, a guarantee comes first.
    let generous = TenantRequest { priority_max: 1000, ..TenantRequest::default() };
    let record: TenantRecord = bed.admin.put("/v1/tenants/greedy", &generous).unwrap();
    assert_eq!(record.priority_max, 1000);
    let holds = greedy.create_lease(&urgent, &idempotency_key()).unwrap();
    let waits = greedy.create_lease(&urgent, &idempotency_key()).unwrap();
    let first = promised.create_lease(&LeaseRequest::default(), &idempotency_key()).unwrap();
    assert_eq!((holds.state, waits.state), (LeaseState::Granted, LeaseState::Pending));
    greedy.release_lease(holds.id).unwrap();
    gpu_box.turn();
    let served = promised.wait_for_lease(first.id, first.version, Duration::from_secs(5)).unwrap();
    assert_eq!(served.state, LeaseState::Granted);
    assert_eq!(greedy.renew_lease(waits.id).unwrap().state, LeaseState::Pending);
}

#[test]
fn limits_of_time_are_set_by_operators_and_tenants_see_their_own_idle_leases() {
    let bed = Bed::make();
    let mut gpu_box = bed.join("rack1-a", 2);
    for gpu in &mut gpu_box.report.gpus {
        gpu.counters = gpu.counters.clone().map(|counters| Counters { utilization_pct: Some(0), ..counters });
    }
    gpu_box.turn();
    let ada = bed.user("spiffe://dxpu/tenant/vision/ada");
    let eve = bed.user("spiffe://dxpu/tenant/speech/eve");
    let times = TenantTimes { limit_max_ms: Some(7_200_000), ..TenantTimes::default() };
    let limited = TenantRequest { times, ..TenantRequest::default() };
    bed.admin.put::<TenantRecord>("/v1/tenants/vision", &limited).unwrap();
    let ask = |limit| LeaseRequest { time_limit_ms: limit, ..LeaseRequest::default() };
    let refused = ada.create_lease(&ask(Some(7_201_000)), &idempotency_key()).unwrap_err();
    assert_eq!(refused.code(), Some(ErrorCode::Forbidden), "{refused}");
    let lease = ada.create_lease(&ask(None), &idempotency_key()).unwrap();
    assert_eq!(lease.request.time_limit_ms, Some(7_200_000), "the longest, if it asks for none");
    gpu_box.turn();
    let idle = |client: &Client, at_least_ms: u64| -> Vec<IdleLease> {
        client.get(&format!("/v1/idle?at_least_ms={at_least_ms}"), Duration::ZERO).unwrap()
    };
    assert_eq!(idle(&ada, 0).iter().map(|idle| idle.lease).collect::<Vec<_>>(), [lease.id]);
    assert_eq!(idle(&bed.admin, 0).len(), 1);
    assert!(idle(&eve, 0).is_empty() && idle(&ada, 3_600_000).is_empty());
}

/// Sent twice in one object, a field means whatever its reader likes.
#[test]
fn a_key_that_is_there_twice_is_refused() {
    use std::io::{Read, Write};
    let bed = Bed::make();
    let token = bed.admin.credential().token.clone().unwrap();
    let send = |path: &str, method: &str, body: &str| {
        let mut stream = crate::strangers::plain(&bed);
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: m\r\nAuthorization: Bearer {}\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            token.reveal(),
            body.len()
        );
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8(answer).unwrap()
    };
    for (path, method, body) in [
        ("/v1/leases", "POST", r#"{"gpus":1,"gpus":2}"#),
        ("/v1/leases", "POST", r#"{"gpus":1,"gpus":2.0}"#),
        ("/v1/tenants/a", "PUT", r#"{"weight":1,"weight":1000.0}"#),
        ("/v1/tenants/a", "PUT", r#"{"quotas":{"H200":{"limit":1},"H200":{"limit":64}}}"#),
        (
            "/v1/tokens",
            "POST",
            r#"{"kind":"user","identity":"viewer/a","identity":"admin/a","ttl_ms":5000.0}"#,
        ),
    ] {
        let answer = send(path, method, body);
        assert!(answer.starts_with("HTTP/1.1 400 "), "{body}: {answer}");
        assert!(answer.contains("is there twice"), "{body}: {answer}");
    }
    assert!(send("/v1/tenants/a", "PUT", r#"{"weight":5.0}"#).starts_with("HTTP/1.1 200 "));
}
