//! KV bookkeeping without IO: slot pool, slot maps, live lists.
