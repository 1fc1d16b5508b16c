//! Writes the pool into ResourceSlices.

use k8s_openapi::api::resource::v1::{Device, ResourceSlice};
use kube::Client;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use kube_claims::{DRIVER, Nodes, SliceChange, plan};

use crate::error::{StepError, is_conflict, is_not_found};

/// The slices as this controller wrote them last.
pub(crate) struct Publisher<'a> {
    api: Api<ResourceSlice>,
    nodes: &'a Nodes,
    written: Option<Vec<Device>>,
}

impl<'a> Publisher<'a> {
    pub(crate) fn new(client: &Client, nodes: &'a Nodes) -> Self {
        Self { api: Api::all(client.clone()), nodes, written: None }
    }

    /// Looks at the server's slices at the next chance, whatever this controller has written.
    pub(crate) fn doubt(&mut self) {
        self.written = None;
    }

    /// Sees to it that the server has these devices.
    pub(crate) async fn publish(&mut self, devices: Vec<Device>) -> Result<(), StepError> {
        if self.written.as_ref() == Some(&devices) {
            return Ok(());
        }
        self.written = None;
        let own = ListParams::default().fields(&format!("spec.driver={DRIVER}"));
        let mut seen = self.api.list(&own).await?.items;
        // A server that does not know the selector shows all.
        seen.retain(|slice| slice.spec.driver == DRIVER);
        let changes = plan(devices.clone(), self.nodes, &seen);
        if !changes.is_empty() {
            tracing::info!(devices = devices.len(), slices = changes.len(), "publishing the pool's GPUs");
        }
        for change in changes {
            let done = match change {
                SliceChange::Create(slice) => self.api.create(&PostParams::default(), &slice).await.map(drop),
                SliceChange::Replace(slice) => {
                    let name = slice.metadata.name.clone().unwrap_or_default();
                    self.api.replace(&name, &PostParams::default(), &slice).await.map(drop)
                }
                SliceChange::Delete(name) => match self.api.delete(&name, &DeleteParams::default()).await {
                    Err(error) if is_not_found(&error) => Ok(()),
                    other => other.map(drop),
                },
            };
            match done {
                // Another controller or a person was quicker: the next look begins with what is there.
                Err(error) if is_conflict(&error) || is_not_found(&error) => return Ok(()),
                other => other?,
            }
        }
        self.written = Some(devices);
        Ok(())
    }
}
