//! What keepers and operators say of leases whose programs outlive losses.

use std::time::Duration;

use pool_api::{
    DrilledRequest, Lease, LeaseId, LossAnswer, LostRequest, MoveRequest, MovedRequest, ParkedRequest,
    Protection, ProtectionReport,
};

use crate::{Client, ClientError};

impl Client {
    /// Says that a GPU of a lease is lost.
    pub fn lost(&self, id: LeaseId, request: &LostRequest) -> Result<LossAnswer, ClientError> {
        self.post(&format!("/v1/leases/{id}/lost"), request, None, Duration::ZERO)
    }

    /// Asks for a second place for a lease, which its program is to go on at.
    pub fn move_lease(&self, id: LeaseId, request: &MoveRequest) -> Result<Lease, ClientError> {
        self.post(&format!("/v1/leases/{id}/move"), request, None, Duration::ZERO)
    }

    /// Says that a program goes on at its second place, or stays.
    pub fn moved(&self, id: LeaseId, request: &MovedRequest) -> Result<Lease, ClientError> {
        self.post(&format!("/v1/leases/{id}/moved"), request, None, Duration::ZERO)
    }

    /// Asks for a drill.
    pub fn drill_lease(&self, id: LeaseId) -> Result<Lease, ClientError> {
        self.post_empty(&format!("/v1/leases/{id}/drill"))
    }

    /// Says how a drill ended.
    pub fn drilled(&self, id: LeaseId, request: &DrilledRequest) -> Result<Lease, ClientError> {
        self.post(&format!("/v1/leases/{id}/drilled"), request, None, Duration::ZERO)
    }

    /// Wants the program of a lease to be kept as an image, without a GPU.
    pub fn suspend_lease(&self, id: LeaseId) -> Result<Lease, ClientError> {
        self.post_empty(&format!("/v1/leases/{id}/suspend"))
    }

    /// Says that the program of a lease is kept as an image, or cannot be.
    pub fn parked(&self, id: LeaseId, request: &ParkedRequest) -> Result<Lease, ClientError> {
        self.post(&format!("/v1/leases/{id}/parked"), request, None, Duration::ZERO)
    }

    /// Asks for GPUs for a parked lease again.
    pub fn resume_lease(&self, id: LeaseId) -> Result<Lease, ClientError> {
        self.post_empty(&format!("/v1/leases/{id}/resume"))
    }

    /// Says how well the program of a lease is protected.
    pub fn set_protection(&self, id: LeaseId, report: &ProtectionReport) -> Result<Protection, ClientError> {
        self.put(&format!("/v1/leases/{id}/protection"), report)
    }

    /// How well the program of a lease is protected.
    pub fn protection(&self, id: LeaseId) -> Result<Protection, ClientError> {
        self.get(&format!("/v1/leases/{id}/protection"), Duration::ZERO)
    }
}
