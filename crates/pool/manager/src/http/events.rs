//! What happened.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use pool_api::{Event, Page};
use pool_auth::Permission;

use super::Api;
use super::errors::Refusals;
use super::extract::Query;
use super::list::{ListQuery, page, until_new};
use crate::books::Books;
use crate::claim::{Caller, Claim};
use crate::desk::{Asked, Audited, Needs};
use crate::problem::Problem;
use crate::waiters::Topic;

/// List events, oldest first
///
/// `after` is the number of the last event that was seen.
#[utoipa::path(get, path = "/v1/events", tag = "events", params(ListQuery),
    responses((status = 200, body = Page<Event>), Refusals))]
pub(super) async fn list(
    State(api): State<Api>,
    claim: Claim,
    Query(query): Query<ListQuery>,
) -> Result<Json<Page<Event>>, Problem> {
    query.check()?;
    let after: u64 = query.after()?.unwrap_or(0);
    let asked = Asked {
        claim,
        action: "event.list",
        target: "event".to_owned(),
        needs: Needs::Permission(Permission::ReadEverything),
        audited: Audited::Denials,
    };
    let (seen, wait) = (query.version, Duration::from_millis(query.wait_ms));
    let look = move |books: &mut Books, _: &Caller| {
        let version = books.ledger.version();
        let events = books.ledger.events(after).cloned();
        Ok((version, page(events, query.limit, version, |event| event.seq.to_string())))
    };
    until_new(&api, asked, Topic::Anything, seen, wait, look).await.map(Json)
}
