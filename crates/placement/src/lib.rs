//! Who owns what: registration, capacity, claims and watch, over an authoritative store.
