//! What is revoked opens nothing any more: not by what it bought, not by what it made, not for those who wait.

use std::time::Duration;

use pool_api::{AccessKind, ErrorCode, NewToken, TokenRequest, WhoAmI};
use pool_auth::{Credential, NewKey};
use pool_client::{Client, ClientError, Patience};

use crate::bed::Bed;

fn no_wait() -> Duration {
    Duration::ZERO
}

fn code<T: std::fmt::Debug>(result: Result<T, ClientError>) -> ErrorCode {
    result.unwrap_err().code().expect("a manager refused")
}

fn make(by: &Client, kind: AccessKind, identity: &str) -> Result<NewToken, ClientError> {
    let request = TokenRequest { kind, identity: identity.to_owned(), ttl_ms: 60_000, note: String::new() };
    by.post("/v1/tokens", &request, None, no_wait())
}

/// The attack: a token of a minute bought a certificate of a year, which outlived the token's revocation.
#[test]
fn a_bearer_token_buys_nothing_that_outlives_it() {
    let bed = Bed::make();
    let made = make(&bed.admin, AccessKind::User, "spiffe://dxpu/admin/mallory").unwrap();
    let mallory = bed.with_token("spiffe://dxpu/admin/mallory", pool_auth::Secret::new(made.token));
    let key = NewKey::make().unwrap();
    let bought = mallory.renew_certificate(&key.request_pem);
    let _: serde_json::Value = bed.admin.delete(&format!("/v1/tokens/{}", made.info.id)).unwrap();
    assert!(mallory.get::<WhoAmI>("/v1/whoami", no_wait()).is_err());
    if let Ok(answer) = &bought {
        let credential = Credential {
            token: None,
            certificate: Some(answer.certificate.clone()),
            key: Some(key.key_pem.clone()),
            ..mallory.credential().clone()
        };
        let copy = Client::new(credential, Patience::ONCE).unwrap();
        assert!(copy.get::<WhoAmI>("/v1/whoami", no_wait()).is_err(), "it goes on as admin");
        assert!(make(&copy, AccessKind::User, "spiffe://dxpu/admin/oscar").is_err(), "and lets others in");
    }
    assert_eq!(code(bought), ErrorCode::Forbidden, "nobody who has a token needs a certificate");
}
