//! Lists: pages, and waiting for something new.

use std::time::{Duration, Instant};

use pool_api::Page;
use serde::Deserialize;
use utoipa::IntoParams;

use super::Api;
use crate::books::Books;
use crate::claim::Caller;
use crate::desk::Asked;
use crate::problem::Problem;
use crate::waiters::Topic;

/// Items on a page: enough for a screen, few enough that no other request waits for it.
const LIMIT_MAX: u32 = 1000;

/// The longest wait. Proxies cut longer ones.
pub(crate) const WAIT_MS_MAX: u64 = 30_000;

/// A request that waits for any change is woken by every change: so much is collected before it looks again.
const GATHER: Duration = Duration::from_millis(50);

/// Which part of a list, and whether to wait for it.
#[derive(Clone, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListQuery {
    /// How many at most.
    #[serde(default = "limit_default")]
    #[param(minimum = 1, maximum = 1000, default = 100)]
    pub(crate) limit: u32,
    /// Begin after this one: `next` of the page before.
    #[param(max_length = 256)]
    pub(crate) after: Option<String>,
    /// Wait for so long for the pool to change from `version`.
    #[serde(default)]
    #[param(maximum = 30_000, default = 0)]
    pub(crate) wait_ms: u64,
    /// The `version` that was seen last.
    pub(crate) version: Option<u64>,
}

fn limit_default() -> u32 {
    100
}

/// Which part of a list that nobody waits for.
#[derive(Clone, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct PageQuery {
    /// How many at most.
    #[serde(default = "limit_default")]
    #[param(minimum = 1, maximum = 1000, default = 100)]
    pub(crate) limit: u32,
    /// Begin after this one.
    #[serde(default)]
    #[param(max_length = 256)]
    pub(crate) after: String,
}

impl PageQuery {
    pub(crate) fn check(&self) -> Result<(), Problem> {
        check_limit(self.limit)?;
        check_after(&self.after)
    }
}

fn check_limit(limit: u32) -> Result<(), Problem> {
    if !(1..=LIMIT_MAX).contains(&limit) {
        return Err(Problem::bad_request(format!("limit must be 1 to {LIMIT_MAX}")));
    }
    Ok(())
}

impl ListQuery {
    pub(crate) fn check(&self) -> Result<(), Problem> {
        check_limit(self.limit)?;
        check_after(self.after.as_deref().unwrap_or_default())?;
        check_wait(self.wait_ms)
    }

    /// Where to begin, as what it is.
    pub(crate) fn after<T: std::str::FromStr>(&self) -> Result<Option<T>, Problem> {
        let parse =
            |text: &String| text.parse().map_err(|_| Problem::bad_request("after: must be `next` of a page"));
        self.after.as_ref().map(parse).transpose()
    }
}

/// Names of whatever is listed are shorter.
fn check_after(after: &str) -> Result<(), Problem> {
    if after.chars().count() > 256 {
        return Err(Problem::bad_request("after: must be `next` of a page"));
    }
    Ok(())
}

pub(crate) fn check_wait(wait_ms: u64) -> Result<(), Problem> {
    if wait_ms > WAIT_MS_MAX {
        return Err(Problem::bad_request(format!("wait_ms must be at most {WAIT_MS_MAX}")));
    }
    Ok(())
}

/// One page of what comes, and where the next begins.
pub(crate) fn page<T>(
    items: impl Iterator<Item = T>,
    limit: u32,
    version: u64,
    name: impl Fn(&T) -> String,
) -> Page<T> {
    let limit = limit as usize;
    let mut items: Vec<T> = items.take(limit + 1).collect();
    let has_more = items.len() > limit;
    items.truncate(limit);
    let next = if has_more { items.last().map(name) } else { None };
    Page { items, next, version }
}

/// Reads; while the version is the one that the client has, waits for a change and reads again.
pub(crate) async fn until_new<T: Send + 'static>(
    api: &Api,
    asked: Asked,
    topic: Topic,
    seen: Option<u64>,
    wait: Duration,
    look: impl Fn(&mut Books, &Caller) -> Result<(u64, T), Problem> + Clone + Send + 'static,
) -> Result<T, Problem> {
    let deadline = Instant::now() + wait;
    loop {
        let (look, topic_now) = (look.clone(), topic.clone());
        let may_wait = !wait.is_zero() && Instant::now() < deadline;
        let (value, woken) = api
            .desk
            .read(asked.clone(), move |books, caller| {
                let (version, value) = look(books, caller)?;
                let woken = (may_wait && seen == Some(version)).then(|| books.waiters.add(topic_now));
                Ok((value, woken))
            })
            .await?;
        let Some(woken) = woken else { return Ok(value) };
        match tokio::time::timeout_at(deadline.into(), woken).await {
            Err(_) => return Ok(value),
            Ok(_) if topic == Topic::Anything => tokio::time::sleep(GATHER).await,
            Ok(_) => {}
        }
    }
}
