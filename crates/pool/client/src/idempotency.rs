//! Keys by which a request that is sent twice is done once.

/// A key that no other call makes.
pub fn idempotency_key() -> String {
    pool_auth::Secret::random(18).reveal().to_owned()
}
