//! Whose socket a token may be sent to.

use std::env;

/// The users whose Unix sockets we show our token: root, ourselves, and those that `DXPU_WORKER_UID` names (numbers
/// with commas between them), for a worker that runs as a user of its own.
pub fn trusted_users() -> Result<Vec<u32>, String> {
    let mut users = vec![0, rustix::process::getuid().as_raw(), rustix::process::geteuid().as_raw()];
    if let Ok(text) = env::var("DXPU_WORKER_UID") {
        users.extend(named(&text)?);
    }
    Ok(users)
}

fn named(text: &str) -> Result<Vec<u32>, String> {
    let number = |word: &str| {
        word.parse().map_err(|_| format!("DXPU_WORKER_UID: {word:?} is not the number of a user"))
    };
    text.split(',').map(str::trim).filter(|word| !word.is_empty()).map(number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_numbers() {
        assert_eq!(named("1000, 65534,"), Ok(vec![1000, 65534]));
        assert!(named("root").unwrap_err().contains("DXPU_WORKER_UID"));
    }
}
