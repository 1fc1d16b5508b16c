//! The client against managers that follow, refuse, break off, lie and say nothing.
//!
//! No test measures time. Where a client has to lose its patience, it has little; where it must not, it has more than any
//! machine needs.

mod script;

use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use pool_api::ErrorCode;
use pool_auth::Identity;
use pool_client::{Client, ClientError, Patience};
use script::{Asked, Pool, Step, http, number, refusal};

/// Until the test's own limit, practically.
const LONG: Patience = Patience { per_try: Duration::from_secs(60), in_all: Duration::from_secs(60) };

/// One round over all managers, each of which may take as long as a loaded machine needs.
const ONE_ROUND: Patience = Patience { per_try: Duration::from_secs(60), in_all: Duration::ZERO };

/// A manager that is silent is left in the end; one that speaks is heard also on a loaded machine.
const HASTY: Patience = Patience { per_try: Duration::from_secs(2), in_all: Duration::from_secs(60) };

fn get(client: &Client) -> Result<u64, ClientError> {
    client.get("/v1/number", Duration::ZERO)
}

/// An address at which a manager will say that another leads, set when that one is known.
#[derive(Clone, Default)]
struct Hint(Arc<Mutex<String>>);

impl Hint {
    fn set(&self, address: &str) {
        *self.0.lock().unwrap() = address.to_owned();
    }

    fn not_leader(&self) -> Step {
        refusal(ErrorCode::NotLeader, &self.0.lock().unwrap())
    }
}

#[test]
fn a_follower_names_the_leader_and_the_client_stays_there() {
    let pool = Pool::new();
    let leader = pool.manager(|_| number(7));
    let url = leader.url();
    let follower = pool.manager(move |_| refusal(ErrorCode::NotLeader, &url));
    let client = pool.client(&[&follower.url(), &leader.url()], ONE_ROUND);
    for _ in 0..3 {
        assert_eq!(get(&client).unwrap(), 7);
    }
    assert_eq!((follower.asked().len(), leader.asked().len()), (1, 3));
}

#[test]
fn a_leader_that_is_not_configured_is_followed_by_its_address() {
    let pool = Pool::new();
    let leader = pool.manager(|_| number(7));
    let url = leader.url();
    let follower = pool.manager(move |_| refusal(ErrorCode::NotLeader, &url));
    let client = pool.client(&[&follower.url()], ONE_ROUND);
    assert_eq!(get(&client).unwrap(), 7);
    assert_eq!(get(&client).unwrap(), 7);
    assert_eq!((follower.asked().len(), leader.asked().len()), (1, 2));
}

#[test]
fn a_follower_that_names_no_address_is_left_for_the_next_one() {
    for hint in ["", "ask the leader", "http://127.0.0.1:1", "https://127.0.0.1:1/v1"] {
        let pool = Pool::new();
        let follower = pool.manager(move |_| refusal(ErrorCode::NotLeader, hint));
        let leader = pool.manager(|_| number(7));
        let client = pool.client(&[&follower.url(), &leader.url()], ONE_ROUND);
        assert_eq!(get(&client).unwrap(), 7, "{hint:?}");
        assert_eq!((follower.asked().len(), leader.asked().len()), (1, 1), "{hint:?}");
    }
}

#[test]
fn managers_that_name_each_other_are_asked_a_bounded_number_of_times() {
    let pool = Pool::new();
    let (to_first, to_second) = (Hint::default(), Hint::default());
    let first = pool.manager({
        let hint = to_second.clone();
        move |_| hint.not_leader()
    });
    let second = pool.manager({
        let hint = to_first.clone();
        move |_| hint.not_leader()
    });
    to_first.set(&first.url());
    to_second.set(&second.url());
    let client = pool.client(&[&first.url(), &second.url()], ONE_ROUND);
    assert_eq!(get(&client).unwrap_err().code(), Some(ErrorCode::NotLeader));
    assert_eq!((first.asked().len(), second.asked().len()), (2, 1));
}

#[test]
fn one_of_two_that_name_each_other_is_found_when_it_begins_to_lead() {
    let pool = Pool::new();
    let (to_first, to_second) = (Hint::default(), Hint::default());
    let first = pool.manager({
        let hint = to_second.clone();
        move |_| hint.not_leader()
    });
    let mut asked = 0;
    let second = pool.manager({
        let hint = to_first.clone();
        move |_| {
            asked += 1;
            if asked > 4 { number(7) } else { hint.not_leader() }
        }
    });
    to_first.set(&first.url());
    to_second.set(&second.url());
    let client = pool.client(&[&first.url(), &second.url()], LONG);
    assert_eq!(get(&client).unwrap(), 7);
    assert_eq!(second.asked().len(), 5);
}

#[test]
fn what_can_never_succeed_is_asked_once() {
    let codes = [
        ErrorCode::BadRequest,
        ErrorCode::Unauthenticated,
        ErrorCode::Forbidden,
        ErrorCode::Revoked,
        ErrorCode::NotFound,
        ErrorCode::MethodNotAllowed,
        ErrorCode::Conflict,
        ErrorCode::IdempotencyConflict,
        ErrorCode::Gone,
        ErrorCode::TooLarge,
        ErrorCode::Internal,
    ];
    let pool = Pool::new();
    for code in codes {
        let first = pool.manager(move |_| refusal(code, "do something else"));
        let second = pool.manager(|_| number(7));
        let client = pool.client(&[&first.url(), &second.url()], LONG);
        let error = get(&client).unwrap_err();
        assert_eq!((error.code(), error.hint()), (Some(code), "do something else"));
        assert_eq!(error.to_string(), format!("{code:?} by script"));
        assert_eq!((first.asked().len(), second.asked().len()), (1, 0), "{code:?}");
    }
}

#[test]
fn what_may_succeed_later_is_asked_again_until_it_does() {
    for code in [ErrorCode::TooMany, ErrorCode::Unavailable, ErrorCode::NotLeader] {
        let pool = Pool::new();
        let mut asked = 0;
        let manager = pool.manager(move |_| {
            asked += 1;
            if asked < 3 { refusal(code, "later") } else { number(7) }
        });
        let client = pool.client(&[&manager.url()], LONG);
        assert_eq!(get(&client).unwrap(), 7, "{code:?}");
        assert_eq!(manager.asked().len(), 3, "{code:?}");
    }
}

#[test]
fn one_round_asks_every_manager_once_and_tells_the_last_refusal() {
    let pool = Pool::new();
    let first = pool.manager(|_| refusal(ErrorCode::TooMany, "first"));
    let second = pool.manager(|_| refusal(ErrorCode::Unavailable, "second"));
    let client = pool.client(&[&first.url(), &second.url()], ONE_ROUND);
    let error = get(&client).unwrap_err();
    assert_eq!((error.code(), error.hint()), (Some(ErrorCode::Unavailable), "second"));
    assert_eq!((first.asked().len(), second.asked().len()), (1, 1));
}

#[test]
fn what_is_sent_again_is_the_same_request() {
    let pool = Pool::new();
    let mut asked = 0;
    let manager = pool.manager(move |_| {
        asked += 1;
        match asked {
            1 => refusal(ErrorCode::Unavailable, ""),
            2 => Step::Raw(Vec::new()),
            3 => Step::Raw(b"HTTP/1.1 200 OK\r\ncontent-length: 20\r\n\r\n7".to_vec()),
            _ => number(7),
        }
    });
    let client = pool.client(&[&manager.url()], LONG);
    let body = serde_json::json!({ "gpus": 2 });
    let answer: u64 = client.post("/v1/leases", &body, Some("a-key"), Duration::ZERO).unwrap();
    assert_eq!(answer, 7);
    let asked = manager.asked();
    assert_eq!(asked.len(), 4);
    assert!(asked.iter().all(|one| *one == asked[0]), "{asked:#?}");
    let Asked { method, path, headers, body } = &asked[0];
    assert_eq!((method.as_str(), path.as_str()), ("POST", "/v1/leases"));
    assert_eq!(body, br#"{"gpus":2}"#);
    assert_eq!(headers["idempotency-key"], "a-key");
    assert_eq!(headers["authorization"], "Bearer its-token");
    assert_eq!(headers["content-type"], "application/json");
    assert_eq!(headers["host"].split(':').next(), Some("manager.dxpu"));
}

/// Ways in which a manager can break off or talk nonsense before it has answered.
fn broken_answers() -> [(&'static str, Vec<u8>); 6] {
    let whole = http(200, b"[1,2,3,4,5,6,7,8]");
    [
        ("closes before it answers", Vec::new()),
        ("closes within the status", whole[..7].to_vec()),
        ("closes within the headers", whole[..40].to_vec()),
        ("closes within the body", whole[..whole.len() - 3].to_vec()),
        ("speaks no HTTP", b"SSH-2.0-OpenSSH_9.6\r\n\r\n".to_vec()),
        ("ends within a chunk", b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n10\r\n7".to_vec()),
    ]
}

#[test]
fn a_manager_that_breaks_off_is_left_for_the_next_one() {
    let pool = Pool::new();
    for (what, bytes) in broken_answers() {
        let first = pool.manager(move |_| Step::Raw(bytes.clone()));
        let second = pool.manager(|_| number(7));
        let client = pool.client(&[&first.url(), &second.url()], ONE_ROUND);
        let answer = get(&client);
        assert!(matches!(answer, Ok(7)), "{what}: {answer:?}");
        assert_eq!((first.asked().len(), second.asked().len()), (1, 1), "{what}");
    }
}

#[test]
fn managers_that_all_break_off_are_told_as_unreachable() {
    let pool = Pool::new();
    for (what, bytes) in broken_answers() {
        let manager = pool.manager(move |_| Step::Raw(bytes.clone()));
        let client = pool.client(&[&manager.url()], ONE_ROUND);
        let error = get(&client).unwrap_err();
        assert!(
            matches!(&error, ClientError::Unreachable { tried, .. } if *tried == manager.url()),
            "{what}"
        );
        assert_eq!(manager.asked().len(), 1, "{what}");
    }
}

/// The request was done: to send it again could do it twice, and would not make its answer any better.
#[test]
fn a_whole_answer_that_cannot_be_read_is_not_asked_for_again() {
    let pool = Pool::new();
    let first = pool.manager(|_| Step::Answer(200, b"<html>hello</html>".to_vec()));
    let second = pool.manager(|_| number(7));
    let client = pool.client(&[&first.url(), &second.url()], LONG);
    assert!(matches!(get(&client), Err(ClientError::Answer(_))));
    assert_eq!((first.asked().len(), second.asked().len()), (1, 0));
}

#[test]
fn an_error_that_is_not_a_managers_is_told_with_its_status_and_tried_elsewhere() {
    let pool = Pool::new();
    let strange = || pool.manager(|_| Step::Answer(502, b"<html>bad gateway</html>".to_vec()));
    let (first, second) = (strange(), pool.manager(|_| number(7)));
    let client = pool.client(&[&first.url(), &second.url()], ONE_ROUND);
    assert_eq!(get(&client).unwrap(), 7);
    let alone = strange();
    let error = get(&pool.client(&[&alone.url()], ONE_ROUND)).unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::Unavailable));
    assert!(error.to_string().contains("502"), "{error}");
    assert_eq!(error.hint(), "check that this is a manager of dxpu");
}

#[test]
fn redirects_of_http_are_not_followed() {
    let pool = Pool::new();
    let elsewhere = pool.manager(|_| number(7));
    let url = elsewhere.url();
    let manager = pool.manager(move |_| {
        let head = format!("HTTP/1.1 302 Found\r\nlocation: {url}/v1/number\r\ncontent-length: 0\r\n\r\n");
        Step::Raw(head.into_bytes())
    });
    let client = pool.client(&[&manager.url()], ONE_ROUND);
    let error = get(&client).unwrap_err();
    assert!(error.to_string().contains("302"), "{error}");
    assert_eq!((manager.asked().len(), elsewhere.asked().len()), (1, 0), "the token goes to managers alone");
}

#[test]
fn a_silent_manager_is_left_and_not_asked_first_any_more() {
    let pool = Pool::new();
    let silent = pool.manager(|_| Step::Silence);
    let speaks = pool.manager(|_| number(7));
    let client = pool.client(&[&silent.url(), &speaks.url()], HASTY);
    for _ in 0..3 {
        assert_eq!(get(&client).unwrap(), 7);
    }
    assert_eq!(silent.asked().len(), 1);
}

#[test]
fn a_manager_that_was_too_slow_once_is_asked_again() {
    let pool = Pool::new();
    let mut asked = 0;
    let manager = pool.manager(move |_| {
        asked += 1;
        if asked == 1 { Step::Silence } else { number(7) }
    });
    let client = pool.client(&[&manager.url()], HASTY);
    assert_eq!(get(&client).unwrap(), 7);
    let requests = manager.asked();
    assert!(requests.len() >= 2 && requests.iter().all(|one| *one == requests[0]), "{requests:#?}");
}

/// A caller that has one round of patience must not lose it to a connection that its manager closed while nothing was said.
#[test]
fn a_connection_that_the_manager_has_closed_meanwhile_is_not_used_again() {
    let pool = Pool::new();
    let manager = pool.manager(|_| Step::AnswerAndClose(200, b"7".to_vec()));
    let client = pool.client(&[&manager.url()], ONE_ROUND);
    for turn in 1..=5 {
        let answer = get(&client);
        assert!(matches!(answer, Ok(7)), "{answer:?}");
        manager.wait_until_closed(turn);
    }
}

#[test]
fn several_threads_of_one_client_find_the_leader_together() {
    let pool = Pool::new();
    let leader = pool.manager(|asked| number(asked.path["/v1/".len()..].parse().unwrap()));
    let url = leader.url();
    let follower = pool.manager(move |_| refusal(ErrorCode::NotLeader, &url));
    let client = pool.client(&[&follower.url(), &leader.url()], LONG);
    let (tell, told) = mpsc::channel();
    std::thread::scope(|scope| {
        for thread in 0..8_u64 {
            let (client, tell) = (&client, tell.clone());
            scope.spawn(move || {
                for turn in 0..5 {
                    let asked = thread * 100 + turn;
                    let answer: u64 = client.get(&format!("/v1/{asked}"), Duration::ZERO).unwrap();
                    tell.send((asked, answer)).unwrap();
                }
            });
        }
    });
    drop(tell);
    let told: Vec<(u64, u64)> = told.iter().collect();
    assert_eq!(told.len(), 40);
    assert!(told.iter().all(|(asked, answer)| asked == answer), "{told:?}");
    assert!(follower.asked().len() <= 8, "each thread at most once");
}

#[test]
fn nobody_but_a_manager_of_this_pool_gets_the_request() {
    let (pool, other) = (Pool::new(), Pool::new());
    let stranger = other.manager(|_| number(7));
    let a_box = pool.server(&Identity::Box("rack1-a".to_owned()), |_| number(7));
    for wrong in [&stranger, &a_box] {
        let error = get(&pool.client(&[&wrong.url()], ONE_ROUND)).unwrap_err();
        assert!(matches!(error, ClientError::Certificate { is_over: false, .. }), "{error:?}");
        assert_eq!(wrong.asked(), []);
    }
    let manager = pool.manager(|_| number(7));
    let client = pool.client(&[&stranger.url(), &a_box.url(), &manager.url()], ONE_ROUND);
    assert_eq!(get(&client).unwrap(), 7);
}

/// An address where nothing listens.
fn absent() -> String {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    format!("https://{}", taken.local_addr().unwrap())
}

/// With a patience of a minute, only a client that does not wait at all ends this test in time to pass.
#[test]
fn where_no_manager_runs_a_user_is_told_at_once() {
    let pool = Pool::new();
    let began = Instant::now();
    let refused = pool.client(&[&absent(), &absent()], LONG).giving_up_when_absent();
    let error = get(&refused).unwrap_err();
    assert!(
        matches!(&error, ClientError::Unreachable { why: pool_client::Silence::Refused, .. }),
        "{error:?}"
    );
    assert!(error.to_string().contains("the connection is refused"), "{error}");
    let unknown = pool.client(&["https://no-such-host.invalid:7500"], LONG).giving_up_when_absent();
    let error = get(&unknown).unwrap_err();
    assert!(error.to_string().contains("name is not known"), "{error}");
    assert!(error.hint().contains("IP address"), "{}", error.hint());
    assert!(began.elapsed() < LONG.in_all, "nothing was tried again");
    // One of two that answers is enough.
    let there = pool.manager(|_| number(7));
    let client = pool.client(&[&absent(), &there.url()], LONG).giving_up_when_absent();
    assert!(matches!(get(&client), Ok(7)));
}

static TOLD: Mutex<Vec<String>> = Mutex::new(Vec::new());

#[test]
fn a_user_that_waits_for_a_silent_manager_is_told_so_once() {
    let pool = Pool::new();
    // Takes connections and answers nothing.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("https://{}", silent.local_addr().unwrap());
    let hasty = Patience { per_try: pool_client::TOLD_AFTER * 2, in_all: Duration::ZERO };
    let client = pool.client(&[&address], hasty).telling(|text| TOLD.lock().unwrap().push(text.to_owned()));
    for _ in 0..2 {
        assert!(get(&client).is_err());
    }
    let told = TOLD.lock().unwrap().clone();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].contains("does not answer yet") && told[0].contains(&address), "{told:?}");
}

static TOLD_ABSENT: Mutex<Vec<String>> = Mutex::new(Vec::new());

#[test]
fn a_program_that_keeps_trying_tells_which_of_the_two_it_is() {
    let pool = Pool::new();
    let hasty = Patience { per_try: Duration::from_secs(1), in_all: Duration::ZERO };
    for address in [absent(), "https://no-such-host.invalid:7500".to_owned()] {
        let client =
            pool.client(&[&address], hasty).telling(|text| TOLD_ABSENT.lock().unwrap().push(text.to_owned()));
        assert!(get(&client).is_err());
    }
    let told = TOLD_ABSENT.lock().unwrap().clone();
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(
        told[0].starts_with("no manager of the pool runs there: the connection is refused (https://"),
        "{told:?}"
    );
    assert!(
        told[1].starts_with("the manager's name is not known to this machine (https://no-such"),
        "{told:?}"
    );
}

/// A manager of the version before does not know a field, and says no more than that.
#[test]
fn a_manager_that_is_older_than_the_client_is_named_as_the_cause() {
    let pool = Pool::new();
    let manager = pool.manager(|_| {
        let message = "the body is not what it should be: unknown field `time_limit_ms`";
        let answer = pool_api::ErrorAnswer::new(ErrorCode::BadRequest, message, "read the document");
        Step::Answer(400, serde_json::to_vec(&answer).unwrap())
    });
    let error = get(&pool.client(&[&manager.url()], ONE_ROUND)).unwrap_err();
    assert!(error.hint().contains("upgrade the managers first"), "{}", error.hint());
    let said = manager.asked()[0].headers.get(pool_api::PROTOCOL_HEADER).cloned();
    assert_eq!(said, Some(pool_api::PROTOCOL.to_string()));
    // Another refusal keeps its own advice.
    let manager = pool.manager(|_| refusal(ErrorCode::BadRequest, "send less"));
    let error = get(&pool.client(&[&manager.url()], ONE_ROUND)).unwrap_err();
    assert_eq!(error.hint(), "send less");
}
