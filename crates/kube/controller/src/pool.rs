//! The pool's manager, asked by threads that may block.

use std::sync::Arc;

use pool_api::{BoxRecord, Gpu, Lease, LeaseId, LeaseRequest};
use pool_client::{Client, ClientError};

use crate::error::StepError;

/// The two clients of a controller.
#[derive(Clone)]
pub(crate) struct Pool {
    borrower: Arc<Client>,
    viewer: Arc<Client>,
    owner: Arc<str>,
}

impl Pool {
    pub(crate) fn new(borrower: &Arc<Client>, viewer: &Arc<Client>) -> Self {
        let owner = borrower.credential().identity.to_string().into();
        Self { borrower: borrower.clone(), viewer: viewer.clone(), owner }
    }

    /// The identity that leases of this controller have as their owner.
    pub(crate) fn owner(&self) -> &str {
        &self.owner
    }

    async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Client) -> Result<T, ClientError> + Send + 'static,
    ) -> Result<T, StepError> {
        ask(self.borrower.clone(), question).await
    }

    pub(crate) async fn gpus(&self) -> Result<Vec<Gpu>, StepError> {
        ask(self.viewer.clone(), Client::gpus).await
    }

    pub(crate) async fn boxes(&self) -> Result<Vec<BoxRecord>, StepError> {
        ask(self.viewer.clone(), Client::boxes).await
    }

    pub(crate) async fn leases(&self) -> Result<Vec<Lease>, StepError> {
        self.ask(Client::leases).await
    }

    pub(crate) async fn leases_labelled(&self, label: String) -> Result<Vec<Lease>, StepError> {
        self.ask(move |client| client.leases_labelled(&label)).await
    }

    pub(crate) async fn create(&self, request: LeaseRequest, key: String) -> Result<Lease, StepError> {
        self.ask(move |client| client.create_lease(&request, &key)).await
    }

    pub(crate) async fn renew(&self, id: LeaseId) -> Result<Lease, StepError> {
        self.ask(move |client| client.renew_lease(id)).await
    }

    pub(crate) async fn release(&self, id: LeaseId) -> Result<Lease, StepError> {
        self.ask(move |client| client.release_lease(id)).await
    }
}

async fn ask<T: Send + 'static>(
    client: Arc<Client>,
    question: impl FnOnce(&Client) -> Result<T, ClientError> + Send + 'static,
) -> Result<T, StepError> {
    let answer = tokio::task::spawn_blocking(move || question(&client)).await;
    Ok(answer.map_err(|_| StepError::Abandoned)??)
}
