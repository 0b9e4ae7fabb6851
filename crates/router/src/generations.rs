//! A bounded map that lets go of what was not used for longest, half of it at a time. Pure.
//!
//! Two generations instead of an order of use: entries are young when they are put in or used, all of them grow old when
//! half of the room is young, and what is still old when there is no room left goes. No entry carries a time.

use std::collections::HashMap;
use std::hash::Hash;

#[derive(Debug)]
pub(crate) struct Generations<K, V> {
    young: HashMap<K, V>,
    old: HashMap<K, V>,
    limit: usize,
}

impl<K: Eq + Hash, V> Generations<K, V> {
    pub(crate) fn new(limit: usize) -> Self {
        Self { young: HashMap::new(), old: HashMap::new(), limit }
    }

    pub(crate) fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }

    pub(crate) fn look(&self, key: &K) -> Option<&V> {
        self.young.get(key).or_else(|| self.old.get(key))
    }

    /// As [`Generations::look`], and makes the entry young.
    pub(crate) fn touch(&mut self, key: &K) -> Option<&mut V> {
        if let Some((key, value)) = self.old.remove_entry(key) {
            self.young.insert(key, value);
        }
        self.young.get_mut(key)
    }

    /// Puts an entry in or replaces it. Returns what had to go, for the caller to drop where it holds no lock. With no
    /// room, and nothing that may go yet, the entry itself is not kept.
    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<HashMap<K, V>> {
        if let Some(held) = self.touch(&key) {
            *held = value;
            return None;
        }
        let full = self.len() >= self.limit;
        let grow_old = self.old.is_empty() && self.young.len() >= self.limit.div_ceil(2);
        let gone = (full || grow_old).then(|| {
            let young = std::mem::take(&mut self.young);
            std::mem::replace(&mut self.old, young)
        });
        if self.len() < self.limit {
            self.young.insert(key, value);
        }
        gone.filter(|gone| !gone.is_empty())
    }

    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        self.young.remove(key).or_else(|| self.old.remove(key))
    }

    /// Walks all entries.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&K, &V) -> bool) {
        self.young.retain(|key, value| keep(key, value));
        self.old.retain(|key, value| keep(key, value));
    }

    #[cfg(test)]
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.young.iter().chain(&self.old)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whatever is put in and used: never more than the limit, never another value, and what is used between any
        /// two turns of the generations stays.
        #[test]
        fn bounded_right_and_kind_to_what_is_used(
            limit in 2usize..12,
            ops in prop::collection::vec((0u8..3, 0u8..30), 0..200),
        ) {
            let mut map = Generations::new(limit);
            let mut truth = HashMap::new();
            map.insert(99, 0);
            for (step, (op, key)) in ops.into_iter().enumerate() {
                match op {
                    0 => { map.remove(&key); truth.remove(&key); }
                    1 => prop_assert!(map.touch(&key).is_none_or(|value| truth.get(&key) == Some(&*value))),
                    _ => { map.insert(key, step); truth.insert(key, step); }
                }
                prop_assert_eq!(map.touch(&99), Some(&mut 0));
                prop_assert!(map.len() <= limit);
                for (key, value) in map.iter().filter(|(key, _)| **key != 99) {
                    prop_assert_eq!(truth.get(key), Some(value));
                }
            }
        }
    }

    #[test]
    fn what_is_idle_goes_when_there_is_no_room_and_not_before() {
        let mut map = Generations::new(4);
        (0..4).for_each(|key| assert!(map.insert(key, ()).is_none()));
        map.touch(&0);
        let gone = map.insert(4, ()).unwrap();
        assert_eq!(gone.into_keys().collect::<Vec<_>>(), [1]);
        assert!([0, 2, 3, 4].iter().all(|key| map.look(key).is_some()));
    }
}
