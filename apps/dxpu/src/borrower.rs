//! Commands of those who use GPUs of other machines: `run`, with a worker or with GPUs of a pool, `smi`, `vm`, `cdi`,
//! `slurm` and `kube`.

pub(crate) mod borrow;
pub(crate) mod cdi;
#[cfg(feature = "kube")]
pub(crate) mod kube;
#[cfg(feature = "kube")]
mod kube_controller;
#[cfg(feature = "kube")]
mod kube_node;
mod preflight;
pub(crate) mod run;
pub(crate) mod slurm;
pub(crate) mod smi;
pub(crate) mod vm;
