//! Tokens that are gone: so that their bearers can be told what became of them.

use std::collections::{HashMap, VecDeque};

use pool_auth::{BearerToken, TokenRecord, TokenRefusal};

/// Tokens that are remembered, the last ones first: some 300 bytes each.
const KEPT: usize = 4096;

/// Tokens that have expired or were revoked while this manager led. In memory alone: another manager says of them that
/// it does not know them. Nothing here lets anybody in.
#[derive(Debug, Default)]
pub(super) struct Departed {
    records: HashMap<String, TokenRecord>,
    order: VecDeque<String>,
}

impl Departed {
    pub(super) fn add(&mut self, record: TokenRecord) {
        self.order.push_back(record.id.clone());
        self.records.insert(record.id.clone(), record);
        if self.order.len() > KEPT
            && let Some(oldest) = self.order.pop_front()
        {
            self.records.remove(&oldest);
        }
    }

    /// What is remembered of a token. Only its bearer is told: its secret must be the right one, which a check at the
    /// token's first moment shows.
    pub(super) fn get(&self, shown: &BearerToken) -> Option<&TokenRecord> {
        let record = self.records.get(shown.id())?;
        record.check_user(shown, record.created_ms).ok().map(|_| record)
    }

    /// Why a token that is no longer among the valid ones is refused.
    pub(super) fn refusal(&self, shown: &BearerToken, now_ms: u64) -> TokenRefusal {
        match self.get(shown) {
            Some(gone) if gone.expires_ms <= now_ms => TokenRefusal::Expired,
            _ => TokenRefusal::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pool_auth::{Identity, TokenKind};

    fn made(expires_ms: u64) -> (BearerToken, TokenRecord) {
        let token = BearerToken::make(TokenKind::User);
        let record = TokenRecord::new(&token, Identity::Viewer("wall".into()), "test", 1000, expires_ms);
        (token, record)
    }

    #[test]
    fn its_bearer_is_told_and_a_stranger_is_not() {
        let mut departed = Departed::default();
        let (token, record) = made(2000);
        departed.add(record);
        assert_eq!(departed.refusal(&token, 2000), TokenRefusal::Expired);
        assert_eq!(
            departed.refusal(&token, 1999),
            TokenRefusal::Unknown,
            "it was revoked; the deny list says more"
        );
        let text = token.reveal().reveal().to_owned();
        let (head, secret) = text.rsplit_once('.').unwrap();
        let guessed = format!("{head}.{}", secret.chars().rev().collect::<String>());
        let guessed = BearerToken::parse(&guessed).unwrap();
        assert_eq!(departed.refusal(&guessed, 2000), TokenRefusal::Unknown);
        assert!(departed.get(&guessed).is_none() && departed.get(&token).is_some());
    }

    #[test]
    fn the_oldest_are_forgotten() {
        let mut departed = Departed::default();
        let (first, record) = made(2000);
        departed.add(record);
        for _ in 0..KEPT {
            departed.add(made(2000).1);
        }
        assert_eq!((departed.records.len(), departed.order.len()), (KEPT, KEPT));
        assert!(departed.get(&first).is_none());
    }
}
