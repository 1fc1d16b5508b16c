//! Reports of boxes and hosts: answered at once, or when there is news.

use std::time::Duration;

use axum::Json;
use serde::Deserialize;
use utoipa::IntoParams;

use super::Api;
use super::list::check_wait;
use crate::books::Books;
use crate::claim::Caller;
use crate::desk::Asked;
use crate::problem::Problem;
use crate::waiters::Topic;

/// Whether the answer may wait for news.
#[derive(Clone, Copy, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReportQuery {
    /// Wait for so long for orders that this run of the agent has not been told, at most until the next report is due.
    /// An agent that missed an answer does not wait.
    #[serde(default)]
    #[param(maximum = 30_000, default = 0)]
    pub(crate) wait_ms: u64,
}

/// What a report is answered with.
pub(super) struct Heard<O> {
    pub(super) orders: O,
    /// This run of the agent was told the same before.
    pub(super) is_known: bool,
    /// When the agent must be heard again, lest it is missed.
    pub(super) report_after_ms: u64,
}

/// Takes a report. While its orders bring nothing new the answer waits, and the report is taken once more when something
/// changes.
pub(super) async fn answer<O: Send + 'static>(
    api: &Api,
    asked: Asked,
    query: ReportQuery,
    topic: Topic,
    take: impl FnOnce(&mut Books, &Caller) -> Result<Heard<O>, Problem> + Clone + Send + 'static,
) -> Result<Json<O>, Problem> {
    check_wait(query.wait_ms)?;
    let began = tokio::time::Instant::now();
    let mut may_wait = query.wait_ms > 0;
    loop {
        let (take, topic) = (take.clone(), topic.clone());
        let act = move |books: &mut Books, caller: &Caller| {
            let heard = take(books, caller)?;
            let woken = (may_wait && heard.is_known).then(|| books.waiters.add(topic));
            Ok((heard, woken))
        };
        let (heard, woken) = api.desk.change(asked.clone(), act).await?;
        let Some(woken) = woken else { return Ok(Json(heard.orders)) };
        let wait = Duration::from_millis(query.wait_ms.min(heard.report_after_ms));
        if tokio::time::timeout_at(began + wait, woken).await.is_err() {
            return Ok(Json(heard.orders));
        }
        may_wait = false;
    }
}
