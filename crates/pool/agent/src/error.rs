//! What an operator must know when an agent cannot start or must not go on.

use nvml_wrapper::error::NvmlError;
use pool_client::ClientError;
use std::net::SocketAddr;
use std::path::PathBuf;

/// What an agent's machine is in its pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It lends GPUs.
    Box,
    /// Its guests get GPUs.
    Host,
}

impl Role {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Box => "box",
            Self::Host => "host",
        }
    }

    /// The other machines on the PCIe plane.
    fn peers(self) -> &'static str {
        match self {
            Self::Box => "hosts",
            Self::Host => "boxes",
        }
    }
}

/// Why an agent does not start, or ends. Other errors of an agent have no more to say than their message.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// It has neither an identity nor a token to join with.
    #[error("{name} is not a member of any pool")]
    NoMember {
        /// What it is.
        role: Role,
        /// Its name.
        name: String,
    },
    /// A token was given without the certificate of the pool's authority.
    #[error("a token alone does not say which pool is the right one")]
    NoAuthority,
    /// No manager accepts its token.
    #[error("the pool does not let {name} join")]
    JoinRefused {
        /// Its name.
        name: String,
        /// As the client says it.
        #[source]
        source: ClientError,
    },
    /// The file with its identity cannot be understood.
    #[error("{} is damaged", .0.display())]
    Damaged(PathBuf),
    /// Another agent has its name.
    #[error("the pool does not listen to this agent: {reason}")]
    Replaced {
        /// What it is.
        role: Role,
        /// As the manager says it.
        reason: String,
    },
    /// An admin revoked its identity.
    #[error("this {} is no member of the pool any more: {reason}", role.word())]
    Revoked {
        /// What it is.
        role: Role,
        /// As the manager says it.
        reason: String,
    },
    /// An address that means every address of this machine is no address to send to.
    #[error("{} cannot be told to send to {address}", role.peers())]
    NoAddress {
        /// What it is.
        role: Role,
        /// What was given.
        address: SocketAddr,
    },
    /// NVML cannot be used.
    #[error("this machine shows no NVIDIA GPU")]
    NoDriver(#[source] NvmlError),
    /// NVML shows nothing.
    #[error("NVIDIA's driver is here and shows no GPU")]
    NoGpu,
    /// A seat for guests would have nothing, or leave nothing to others.
    #[error(
        "a guest cannot have {asked_bytes} bytes of memory: the smallest GPU here has {least_bytes}, and others need some of it"
    )]
    GuestMemory {
        /// What each guest was to have.
        asked_bytes: u64,
        /// What the smallest GPU has.
        least_bytes: u64,
    },
    /// The parts of its GPUs would be more than a box has slots.
    #[error("{gpus} GPUs in {count} parts each are more than a box has slots for: {most} GPUs at most")]
    TooManyParts {
        /// GPUs of the box.
        gpus: usize,
        /// Parts of each.
        count: u8,
        /// How many GPUs there may be with so many parts.
        most: u8,
    },
    /// The parts of a GPU would have no memory for leases.
    #[error(
        "a GPU cannot be lent in {count} parts of {gpu_bytes} bytes together: each keeps {reserve_bytes} for driver contexts"
    )]
    PartMemory {
        /// What the GPU has.
        gpu_bytes: u64,
        /// Parts of it.
        count: u8,
        /// What each part keeps from leases.
        reserve_bytes: u64,
    },
    /// A box has no such slot.
    #[error("there is no slot {slot} below {}", state.display())]
    NoSlot {
        /// The slot's number.
        slot: u8,
        /// Where the box keeps its files.
        state: PathBuf,
    },
}

impl AgentError {
    /// What to do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::NoMember { role: Role::Box, .. } => {
                "have an admin make a join token (`dxpu token create box/NAME --out FILE`) and give it with --join-token-file"
            }
            Self::NoMember { role: Role::Host, .. } => {
                "have an admin make a join token (`dxpu token create host/NAME --out FILE`) and give it with --join-token-file"
            }
            Self::NoAuthority => {
                "give the file that `dxpu token create` wrote with --join-token-file, or add --authority FILE"
            }
            Self::JoinRefused { .. } => {
                "a token works once, for one name, for a while; have an admin make another with `dxpu token create`"
            }
            Self::Damaged(_) => "remove it and join again with a new token",
            Self::Replaced { role: Role::Box, .. } => {
                "another agent speaks for this box; stop that one, or give this one another name"
            }
            Self::Replaced { role: Role::Host, .. } => {
                "another agent speaks for this host; stop that one, or give this one another name"
            }
            Self::Revoked { role: Role::Box, .. } => {
                "have an admin make a new join token (`dxpu token create box/NAME --out FILE`) and start again with --join-token-file"
            }
            Self::Revoked { role: Role::Host, .. } => {
                "have an admin make a new join token (`dxpu token create host/NAME --out FILE`) and start again with --join-token-file"
            }
            Self::NoAddress { .. } => "give the address they reach this machine by",
            Self::NoDriver(_) => "install NVIDIA's driver, or lend GPUs in software with --soft N",
            Self::NoGpu => "look at `nvidia-smi`",
            Self::GuestMemory { .. } => "give --guest-memory less than the GPUs have",
            Self::TooManyParts { .. } | Self::PartMemory { .. } => "give --shares a smaller number",
            Self::NoSlot { .. } => "give the --state-dir of the box",
        }
    }
}
