//! Labels of metrics: closed sets of names, known before anything is measured.
//!
//! A label is an enum and never a text, so that no session, tenant or address can become one.

use crate::ErrorCode;

/// A closed set of values of one label.
pub trait Label: Copy + PartialEq + 'static {
    const KEY: &'static str;
    /// Every value.
    const ALL: &'static [Self];

    fn name(self) -> &'static str;

    /// Its place in [`Label::ALL`].
    fn index(self) -> usize {
        Self::ALL.iter().position(|other| *other == self).expect("ALL names every value")
    }
}

/// Declares an enum whose values are those of a label.
#[macro_export]
macro_rules! label {
    ($(#[$about:meta])* $visible:vis enum $name:ident: $key:literal { $($(#[$says:meta])* $value:ident = $text:literal),+ $(,)? }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        $visible enum $name { $($(#[$says])* $value),+ }

        impl $crate::telemetry::Label for $name {
            const KEY: &'static str = $key;
            const ALL: &'static [Self] = &[$(Self::$value),+];

            fn name(self) -> &'static str {
                match self { $(Self::$value => $text),+ }
            }

            fn index(self) -> usize {
                self as usize
            }
        }
    };
}

/// How a request ended: well, or with an error code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Ok,
    Failed(ErrorCode),
}

const OUTCOMES: [Outcome; ErrorCode::ALL.len() + 1] = {
    let mut all = [Outcome::Ok; ErrorCode::ALL.len() + 1];
    let mut index = 0;
    while index < ErrorCode::ALL.len() {
        all[index + 1] = Outcome::Failed(ErrorCode::ALL[index]);
        index += 1;
    }
    all
};

impl Label for Outcome {
    const KEY: &'static str = "outcome";
    const ALL: &'static [Self] = &OUTCOMES;

    fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Failed(code) => code.name(),
        }
    }

    fn index(self) -> usize {
        match self {
            Self::Ok => 0,
            Self::Failed(code) => code as usize + 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    label! {
        /// Of this test.
        enum Tried: "tried" { First = "first", Again = "again" }
    }

    fn check<L: Label + std::fmt::Debug>() {
        for (index, &value) in L::ALL.iter().enumerate() {
            assert_eq!(value.index(), index, "{value:?}");
        }
        let names: BTreeSet<_> = L::ALL.iter().map(|value| value.name()).collect();
        assert_eq!(names.len(), L::ALL.len(), "every value has its own name");
        assert!(names.iter().all(|name| name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')));
    }

    #[test]
    fn a_value_is_where_its_set_says_and_has_a_name_of_its_own() {
        check::<Outcome>();
        check::<Tried>();
        assert_eq!(Outcome::ALL.len(), ErrorCode::ALL.len() + 1);
    }
}
