//! How many tokens a session may keep live, as people write it and as results name it.
//!
//! Each budget has one written form, so equal budgets compare equal wherever they come from.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Text that is no budget.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no budget; write tokens such as 1024, or a share of the session such as 12.5%")]
pub struct BudgetError {
    text: String,
}

/// How many tokens a session may keep live. In JSON and on the command line: `"1024"`, or `"12.5%"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum BudgetLabel {
    /// The same for every session.
    Tokens(u32),
    /// A share of the session's length, in hundredths of a percent: 12.5 % is 1,250.
    Share { hundredths: u32 },
}

impl BudgetLabel {
    /// The budget in tokens for a session of `length` tokens: at least 1, rounded to the nearest.
    #[must_use]
    pub fn tokens(self, length: usize) -> usize {
        match self {
            Self::Tokens(tokens) => tokens as usize,
            Self::Share { hundredths } => {
                let tokens = (length as u128 * u128::from(hundredths) + 5_000) / 10_000;
                usize::try_from(tokens).unwrap_or(usize::MAX).max(1)
            }
        }
    }
}

impl fmt::Display for BudgetLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tokens(tokens) => write!(f, "{tokens}"),
            Self::Share { hundredths } => {
                let (percent, rest) = (hundredths / 100, hundredths % 100);
                match (rest, rest % 10) {
                    (0, _) => write!(f, "{percent}%"),
                    (_, 0) => write!(f, "{percent}.{}%", rest / 10),
                    _ => write!(f, "{percent}.{rest:02}%"),
                }
            }
        }
    }
}

impl FromStr for BudgetLabel {
    type Err = BudgetError;

    fn from_str(text: &str) -> Result<Self, BudgetError> {
        let refuse = || BudgetError { text: text.to_owned() };
        let number = |digits: &str| {
            let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
            if plain { digits.parse::<u32>().map_err(|_| refuse()) } else { Err(refuse()) }
        };
        let Some(percent) = text.strip_suffix('%') else {
            return match number(text)? {
                0 => Err(refuse()),
                tokens => Ok(Self::Tokens(tokens)),
            };
        };
        let percent = percent.trim_end();
        let (whole, part) = percent.split_once('.').unwrap_or((percent, "0"));
        let part_hundredths = match part.len() {
            1 => number(part)? * 10,
            2 => number(part)?,
            _ => return Err(refuse()),
        };
        match number(whole)?.checked_mul(100).and_then(|whole| whole.checked_add(part_hundredths)) {
            Some(hundredths @ 1..=10_000) => Ok(Self::Share { hundredths }),
            _ => Err(refuse()),
        }
    }
}

impl TryFrom<String> for BudgetLabel {
    type Error = BudgetError;

    fn try_from(text: String) -> Result<Self, BudgetError> {
        text.parse()
    }
}

impl From<BudgetLabel> for String {
    fn from(budget: BudgetLabel) -> Self {
        budget.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_have_one_written_form() {
        for text in ["1", "1024", "100%", "50%", "12.5%", "6.25%", "0.01%"] {
            assert_eq!(text.parse::<BudgetLabel>().unwrap().to_string(), text);
        }
        assert_eq!("12.50 %".parse(), Ok(BudgetLabel::Share { hundredths: 1_250 }));
        for text in ["", "0", "0%", "100.5%", "-1", "+1", "1e3", "%", ".5%", "1.%", "1.234%", "99999999999"] {
            assert!(text.parse::<BudgetLabel>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_share_is_of_the_length_of_the_session() {
        let eighth = BudgetLabel::Share { hundredths: 1_250 };
        assert_eq!([eighth.tokens(1_000), eighth.tokens(1_004), eighth.tokens(1)], [125, 126, 1]);
        assert_eq!(BudgetLabel::Share { hundredths: 10_000 }.tokens(777), 777);
        assert_eq!(BudgetLabel::Tokens(512).tokens(10), 512);
    }
}
