//! Questions to a manager.

use crate::support::exit::Failure;
use crate::support::pool_access::failure;
use pool_api::{Page, WhoAmI};
use pool_client::{Client, ClientError};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::time::Duration;

/// Items on a page, the most a manager gives at once.
const PAGE_ITEMS: usize = 1000;

/// All items of a list, page by page, and the state of the pool the last page was read from.
pub(crate) fn all<T: DeserializeOwned>(client: &Client, path: &str) -> Result<(Vec<T>, u64), ClientError> {
    let mut items = Vec::new();
    let mut after = String::new();
    let join = if path.contains('?') { '&' } else { '?' };
    loop {
        let begin = if after.is_empty() { String::new() } else { format!("&after={}", encoded(&after)) };
        let page: Page<T> = client.get(&format!("{path}{join}limit={PAGE_ITEMS}{begin}"), Duration::ZERO)?;
        items.extend(page.items);
        match page.next {
            Some(next) => after = next,
            None => return Ok((items, page.version)),
        }
    }
}

/// Waits until the pool is no longer at this version, or for so long. Every user may ask for leases, if only their own.
pub(crate) fn wait_for_change(client: &Client, version: u64, wait: Duration) -> Result<u64, ClientError> {
    let path = format!("/v1/leases?limit=1&version={version}&wait_ms={}", wait.as_millis());
    client.get::<Page<serde_json::Value>>(&path, wait).map(|page| page.version)
}

/// The manager's clock.
pub(crate) fn now_ms(client: &Client) -> Result<u64, ClientError> {
    client.get::<WhoAmI>("/v1/whoami", Duration::ZERO).map(|me| me.now_ms)
}

/// Does something to one thing.
pub(crate) fn post<T: DeserializeOwned>(
    client: &Client,
    path: &str,
    body: &impl Serialize,
) -> Result<T, Failure> {
    client.post(path, body, None, Duration::ZERO).map_err(failure)
}

/// Text as it may stand in an address.
pub(crate) fn encoded(text: &str) -> String {
    let mut result = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => result.push(byte as char),
            _ => result.push_str(&format!("%{byte:02X}")),
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_encoded() {
        assert_eq!(encoded("rack1-a/3"), "rack1-a%2F3");
        assert_eq!(encoded("NVIDIA A100"), "NVIDIA%20A100");
        assert_eq!(encoded("ä&?"), "%C3%A4%26%3F");
    }
}
