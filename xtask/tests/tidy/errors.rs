//! Errors have types.

use crate::tree;

/// Where a crate still fails with a bare sentence.
const EXCEPTIONS: &[&str] = &[
    // The sentence is shown to the operator who wrote the file or the setting; no code handles it.
    "crates/cuda/table/src/parse.rs",
    "crates/study/model/src/profile/wire.rs",
    "crates/pool/core/src/ledger/keys.rs",
    "crates/pool/manager/src/access.rs",
    "crates/net/worker-link/src/config.rs",
    "crates/net/worker-link/src/tokens.rs",
    "crates/net/worker-link/src/users.rs",
    // Why a program cannot go on, or why an image was refused: the sentence is told to the user or to the other process.
    "crates/cuda/libcuda/src/link/places.rs",
    "crates/cuda/libcuda/src/link/planned.rs",
    "crates/cuda/libcuda/src/link/resume.rs",
    "crates/cuda/libcuda/src/link/survival.rs",
    "crates/cuda/worker/src/session/cuts/keeper.rs",
    // Why a claim is refused, or no way leads to its GPU: the sentence goes into the claim or to the kubelet.
    "crates/kube/claims/src/decide.rs",
    "crates/kube/claims/src/simulation.rs",
    "crates/kube/node/src/leases.rs",
    "crates/pool/keeper/src/recover.rs",
    "crates/pool/keeper/src/serve.rs",
    "crates/pool/keeper/src/watch.rs",
];

/// A caller cannot tell one `String` from another. (The binary in `apps/` may: there a sentence is shown, not handled.)
#[test]
fn errors_of_crates_have_types() {
    let mut found: Vec<String> = Vec::new();
    for path in tree::files(&["crates"], ".rs") {
        let is_product = path.components().any(|part| part.as_os_str() == "src")
            && !path.components().any(|part| part.as_os_str() == "tests")
            && path.file_name().is_some_and(|name| name != "tests.rs");
        if is_product && tree::text(&path).lines().any(says_string) {
            found.push(path.display().to_string());
        }
    }
    tree::same("An error of a crate has a type of its own, not String.", &found, EXCEPTIONS);
}

fn says_string(line: &str) -> bool {
    line.contains("Result<") && line.contains(", String>") && !line.trim_start().starts_with("//")
}
