//! A browser's session: a cookie that its scripts cannot read, and what keeps other pages from using it.
//!
//! ```text
//!   __Host-dxpu=TOKEN.NONCE; Secure; HttpOnly; SameSite=Strict      the user's token, and what makes this login unlike others
//!   x-dxpu-csrf: hash(TOKEN, NONCE)                                  what only a page that the manager served has read
//! ```
//!
//! The manager keeps nothing: any manager of the pool reads the same from a cookie, and a revoked token ends its sessions.
//! Three things keep a foreign page from acting with the cookie of a user who visits it, each by itself. The browser sends
//! the cookie with requests of our own pages alone (`SameSite=Strict`). A request that changes something must name our own
//! address as its origin, which a page cannot choose. And it must show the hash, which a foreign page cannot read.

use std::fmt;

use pool_auth::{BearerToken, Secret};

/// `__Host-` has the browser refuse the cookie unless it is secure, of this host alone and for every path.
const COOKIE: &str = "__Host-dxpu";

/// Where a page shows that it knows its session's hash.
pub(crate) const CSRF_HEADER: &str = "x-dxpu-csrf";

/// Bytes of what makes a login unlike others.
const NONCE_BYTES: usize = 16;

/// Names the use of the hash, so that no hash of another part is ever the same.
const CONTEXT: &str = "dxpu 2026 dashboard session: token against forged requests";

/// One login of one browser.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Session {
    token: BearerToken,
    nonce: String,
}

/// What a request with a session says of where it comes from.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sent<'a> {
    /// Whether it may change something.
    pub(crate) changes: bool,
    /// The address it was sent to.
    pub(crate) host: Option<&'a str>,
    /// The page that sent it.
    pub(crate) origin: Option<&'a str>,
    /// How that page and this manager are related, as the browser says.
    pub(crate) fetch_site: Option<&'a str>,
    /// What it shows as the session's hash.
    pub(crate) csrf: Option<&'a str>,
}

/// Why a request is not believed to come from our own page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Forged {
    #[error("the browser says that another site sent it")]
    OtherSite,
    #[error("it does not say which page sent it")]
    NoOrigin,
    #[error("a page of another address sent it")]
    OtherOrigin,
    #[error("it does not show the session's token against forged requests")]
    NoToken,
    #[error("it shows another session's token against forged requests")]
    OtherToken,
}

impl Session {
    /// A new login.
    pub(crate) fn begin(token: BearerToken) -> Self {
        Self { token, nonce: Secret::random(NONCE_BYTES).reveal().to_owned() }
    }

    /// The session in a `Cookie` header.
    pub(crate) fn in_cookies(header: &str) -> Option<Self> {
        let value = header.split(';').find_map(|cookie| {
            let (name, value) = cookie.split_once('=')?;
            (name.trim() == COOKIE).then_some(value.trim())
        })?;
        let (token, nonce) = value.rsplit_once('.')?;
        let is_nonce = (1..=64).contains(&nonce.len()) && nonce.bytes().all(|byte| byte.is_ascii_graphic());
        is_nonce.then_some(Self { token: BearerToken::parse(token)?, nonce: nonce.to_owned() })
    }

    /// The cookie that gives the session to the browser, until it is closed.
    pub(crate) fn cookie(&self) -> String {
        let token = self.token.reveal();
        format!("{COOKIE}={}.{}; Path=/; Secure; HttpOnly; SameSite=Strict", token.reveal(), self.nonce)
    }

    /// The cookie that takes any session away.
    pub(crate) fn end_cookie() -> String {
        format!("{COOKIE}=; Path=/; Max-Age=0; Secure; HttpOnly; SameSite=Strict")
    }

    fn hash(&self) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_derive_key(CONTEXT);
        hasher.update(self.token.reveal().reveal().as_bytes()).update(b".").update(self.nonce.as_bytes());
        hasher.finalize()
    }

    /// What the page shows with each request that changes something.
    pub(crate) fn csrf(&self) -> String {
        self.hash().to_hex().to_string()
    }

    /// Whether our own page sent this.
    pub(crate) fn check(&self, sent: &Sent<'_>) -> Result<(), Forged> {
        // `none` is a person who typed the address.
        if sent.fetch_site.is_some_and(|site| !matches!(site, "same-origin" | "none")) {
            return Err(Forged::OtherSite);
        }
        if !sent.changes {
            return Ok(());
        }
        check_origin(sent.origin.ok_or(Forged::NoOrigin)?, sent.host)?;
        let shown = sent.csrf.ok_or(Forged::NoToken)?;
        // Hashes are compared in constant time.
        match blake3::Hash::from_hex(shown) {
            Ok(shown) if shown == self.hash() => Ok(()),
            _ => Err(Forged::OtherToken),
        }
    }

    /// The token that the user logged in with.
    pub(crate) fn into_token(self) -> BearerToken {
        self.token
    }
}

/// Whether a page of this manager's own address sent the request.
pub(crate) fn check_origin(origin: &str, host: Option<&str>) -> Result<(), Forged> {
    match (origin.strip_prefix("https://"), host) {
        (Some(page), Some(host)) if page.eq_ignore_ascii_case(host) => Ok(()),
        _ => Err(Forged::OtherOrigin),
    }
}

/// Sessions must not appear in a log.
impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Session of {:?}", self.token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pool_auth::TokenKind;

    const HOST: Option<&str> = Some("pool.example:7500");

    fn session() -> Session {
        Session::begin(BearerToken::make(TokenKind::User))
    }

    fn honest(csrf: &str) -> Sent<'_> {
        Sent {
            changes: true,
            host: HOST,
            origin: Some("https://pool.example:7500"),
            fetch_site: Some("same-origin"),
            csrf: Some(csrf),
        }
    }

    #[test]
    fn a_cookie_is_read_as_it_was_given_and_hidden_from_scripts() {
        let session = session();
        let cookie = session.cookie();
        for rule in ["; Secure", "; HttpOnly", "; SameSite=Strict", "; Path=/"] {
            assert!(cookie.contains(rule), "{rule}");
        }
        let sent = format!("other=1; {}; more=2", cookie.split(';').next().unwrap());
        assert_eq!(Session::in_cookies(&sent), Some(session.clone()));
        for bad in [
            "",
            "__Host-dxpu=",
            "__Host-dxpu=dxpu-user.1.2.3",
            "dxpu=x",
            &sent.replace("__Host-dxpu", "dxpu"),
        ] {
            assert_eq!(Session::in_cookies(bad), None, "{bad}");
        }
        let printed = format!("{session:?}");
        assert!(!printed.contains(session.token.reveal().reveal()) && !printed.contains(&session.nonce));
    }

    #[test]
    fn our_own_page_may_change_and_others_may_not() {
        let session = session();
        let csrf = session.csrf();
        assert_eq!(session.check(&honest(&csrf)), Ok(()));
        let refused = |sent: Sent<'_>| session.check(&sent).unwrap_err();
        assert_eq!(refused(Sent { fetch_site: Some("cross-site"), ..honest(&csrf) }), Forged::OtherSite);
        assert_eq!(refused(Sent { fetch_site: Some("same-site"), ..honest(&csrf) }), Forged::OtherSite);
        assert_eq!(refused(Sent { origin: None, ..honest(&csrf) }), Forged::NoOrigin);
        for origin in
            ["https://evil.example", "http://pool.example:7500", "null", "https://pool.example:7501"]
        {
            assert_eq!(
                refused(Sent { origin: Some(origin), ..honest(&csrf) }),
                Forged::OtherOrigin,
                "{origin}"
            );
        }
        assert_eq!(refused(Sent { host: None, ..honest(&csrf) }), Forged::OtherOrigin);
        assert_eq!(refused(Sent { csrf: None, ..honest(&csrf) }), Forged::NoToken);
        for shown in ["", "00", &csrf[1..], &self::session().csrf()] {
            assert_eq!(refused(honest(shown)), Forged::OtherToken, "{shown}");
        }
        let again = Session::begin(session.token.clone());
        assert_ne!(again.csrf(), csrf, "each login has its own");
    }

    #[test]
    fn reading_needs_no_hash_but_no_other_site_reads() {
        let session = session();
        assert_eq!(session.check(&Sent::default()), Ok(()));
        assert_eq!(session.check(&Sent { fetch_site: Some("none"), ..Sent::default() }), Ok(()));
        let sent = Sent { fetch_site: Some("cross-site"), ..Sent::default() };
        assert_eq!(session.check(&sent), Err(Forged::OtherSite));
    }
}
