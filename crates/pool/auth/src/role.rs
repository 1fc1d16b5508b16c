//! Roles, and the permissions of each.

use serde::{Deserialize, Serialize};

/// What an identity is entitled to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Looks.
    Viewer,
    /// Borrows, for one tenant.
    Tenant,
    /// Looks after GPUs and boxes.
    Operator,
    /// Gives others their access.
    Admin,
    /// The agent of a box.
    Box,
    /// The agent of a host of the PCIe plane.
    Host,
    /// Another manager.
    Manager,
}

/// One kind of thing that can be asked of a manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Permission {
    /// See GPUs, boxes, spares and the holder of each.
    ReadPool,
    /// See the metrics, which name GPUs and boxes.
    ReadMetrics,
    /// See leases of one's own tenant.
    ReadOwnLeases,
    /// See leases, tenants and events of all tenants.
    ReadEverything,
    /// Ask for, renew and release leases of one's own tenant.
    BorrowForOwnTenant,
    /// The same for any tenant, and release what others hold.
    BorrowForAnybody,
    /// Taint, drain and repair GPUs; set spares.
    OperateGpus,
    /// Break a GPU on purpose, to show what happens.
    BreakGpus,
    /// Set quotas.
    ManageTenants,
    /// Read the audit trail.
    ReadAudit,
    /// Make and revoke tokens; certify others.
    ManageAccess,
    /// Report the state of a box: of the one box that the identity names.
    ReportOwnBox,
    /// Report the state of a host, and read its record: of the one host that the identity names.
    ReportOwnHost,
    /// Get a new certificate for the same name. Only machines have one: users and operators show a token,
    /// which can be revoked and ends when it says.
    RenewOwnCertificate,
}

impl Role {
    /// Whether a role includes a permission. What is not written here is refused.
    pub fn may(self, permission: Permission) -> bool {
        use Permission as P;
        match self {
            Self::Viewer => matches!(permission, P::ReadPool | P::ReadMetrics | P::ReadEverything),
            Self::Tenant => {
                matches!(permission, P::ReadOwnLeases | P::BorrowForOwnTenant)
            }
            Self::Operator => matches!(
                permission,
                P::ReadPool
                    | P::ReadMetrics
                    | P::ReadOwnLeases
                    | P::ReadEverything
                    | P::OperateGpus
                    | P::ManageTenants
                    | P::ReadAudit
            ),
            Self::Admin => matches!(
                permission,
                P::ReadPool
                    | P::ReadMetrics
                    | P::ReadOwnLeases
                    | P::ReadEverything
                    | P::BorrowForOwnTenant
                    | P::BorrowForAnybody
                    | P::OperateGpus
                    | P::BreakGpus
                    | P::ManageTenants
                    | P::ReadAudit
                    | P::ManageAccess
            ),
            Self::Box => matches!(permission, P::ReportOwnBox | P::RenewOwnCertificate),
            Self::Host => matches!(permission, P::ReportOwnHost | P::RenewOwnCertificate),
            Self::Manager => matches!(permission, P::ReadMetrics),
        }
    }

    /// As it is written in tables and errors.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Tenant => "tenant",
            Self::Operator => "operator",
            Self::Admin => "admin",
            Self::Box => "box",
            Self::Host => "host",
            Self::Manager => "manager",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Permission as P;

    const ROLES: [Role; 7] =
        [Role::Viewer, Role::Tenant, Role::Operator, Role::Admin, Role::Box, Role::Host, Role::Manager];

    fn who_may(permission: P) -> Vec<&'static str> {
        ROLES.into_iter().filter(|role| role.may(permission)).map(Role::as_str).collect()
    }

    #[test]
    fn dangerous_things_are_for_few() {
        assert_eq!(who_may(P::ManageAccess), ["admin"]);
        assert_eq!(who_may(P::BreakGpus), ["admin"]);
        assert_eq!(who_may(P::BorrowForAnybody), ["admin"]);
        assert_eq!(who_may(P::OperateGpus), ["operator", "admin"]);
        assert_eq!(who_may(P::ReadAudit), ["operator", "admin"]);
        assert_eq!(who_may(P::ReportOwnBox), ["box"], "not even an admin speaks for a box");
        assert_eq!(who_may(P::ReportOwnHost), ["host"], "nor for a host");
        assert_eq!(who_may(P::BorrowForOwnTenant), ["tenant", "admin"]);
        assert_eq!(who_may(P::RenewOwnCertificate), ["box", "host"], "who has a token buys no certificate");
    }

    #[test]
    fn a_host_reports_and_renews_and_nothing_else() {
        let all = [
            P::ReadPool,
            P::ReadMetrics,
            P::ReadOwnLeases,
            P::ReadEverything,
            P::BorrowForOwnTenant,
            P::BorrowForAnybody,
            P::OperateGpus,
            P::BreakGpus,
            P::ManageTenants,
            P::ReadAudit,
            P::ManageAccess,
            P::ReportOwnBox,
        ];
        assert!(!all.into_iter().any(|permission| Role::Host.may(permission)));
        assert!(Role::Host.may(P::ReportOwnHost) && Role::Host.may(P::RenewOwnCertificate));
    }

    #[test]
    fn tenants_do_not_see_each_other() {
        assert!(!Role::Tenant.may(P::ReadPool) && !Role::Tenant.may(P::ReadEverything));
    }
}
