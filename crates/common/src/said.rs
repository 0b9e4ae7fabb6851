//! What was said last, so that whoever tries the same again and again says it once.
//!
//! Pure: writes nothing itself.

/// The last reason that people were told. Nothing at first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Said(Option<String>);

impl Said {
    /// Whether `reason` differs from the last one; it is the last one from now on.
    pub fn is_news(&mut self, reason: &str) -> bool {
        let is_news = self.0.as_deref() != Some(reason);
        if is_news {
            self.0 = Some(reason.to_owned());
        }
        is_news
    }

    /// It is over: the same reason is news again. Whether there was anything to be over.
    pub fn clear(&mut self) -> bool {
        self.0.take().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_news_once_until_it_changes_or_is_over() {
        let mut said = Said::default();
        assert!(!said.clear());
        let heard: Vec<_> =
            ["a", "a", "b", "b", "a"].into_iter().map(|reason| said.is_news(reason)).collect();
        assert_eq!(heard, [true, false, true, false, true]);
        assert!(said.clear() && !said.clear());
        assert!(said.is_news("a"));
    }
}
