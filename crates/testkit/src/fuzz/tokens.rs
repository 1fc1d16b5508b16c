//! Tokens and names that strangers show to a box or a manager.

use pool_auth::{BearerToken, Identity, lease_token};

/// A lease token: what decodes is written as the same text, and none of it opens anything under a key that never signed.
pub fn lease_token(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match lease_token::decode(text) {
        Ok(signed) => {
            assert_eq!(lease_token::encode(&signed).as_deref(), Ok(text));
            let key: pool_auth::LeasePublicKey =
                "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511b"
                    .parse()
                    .expect("64 digits");
            let claims = &signed.claims;
            let opened = lease_token::verify(text, &[key], &claims.box_name, claims.slot, 0);
            assert!(opened.is_err(), "nobody has that key");
        }
        Err(error) => assert!(error.to_string().len() < 200),
    }
}

/// A bearer token or an identity, as they come in headers, requests and certificates.
pub fn identity(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Some(token) = BearerToken::parse(text) {
        assert_eq!(token.reveal().reveal(), text);
        assert!(!format!("{token:?}").contains(&text[text.len() - 43..]), "a token does not print");
    }
    if let Ok(identity) = text.parse::<Identity>() {
        assert_eq!(identity.to_string(), text);
    }
    // A certificate is read after the handshake has checked it, but by another parser.
    let _ = pool_auth::identity_of(data);
}
