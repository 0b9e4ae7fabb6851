//! The owned layer over a scripted fake, on machines without a GPU; and one run over the real libraries.

mod fake;
mod life;
mod pieces;
mod real;
mod rows;

use std::sync::Arc;
use std::time::Duration;

use hawser_common::clock::Clock;

use super::{Member, Nccl, NcclOptions, TagCheck, UniqueId};
use crate::collective::CollectiveError;
use fake::{Fake, Hub};

const SECOND: Duration = Duration::from_secs(1);

fn options(tags: TagCheck) -> NcclOptions {
    NcclOptions { device: 0, join_timeout: 10 * SECOND, timeout: 5 * SECOND, tags }
}

fn id() -> UniqueId {
    UniqueId::from([7; UniqueId::LEN])
}

/// A rank over a fake whose clock moves by a second at every look.
fn rank(fake: &Arc<Fake>, member: Member, tags: TagCheck) -> Result<Nccl, CollectiveError> {
    let (clock, manual) = Clock::manual();
    fake.at_each_look(move || manual.advance(SECOND));
    Nccl::join_through(Arc::<Fake>::clone(fake), &id(), member, options(tags), clock)
}

/// The first of `world` ranks, of which only this one exists.
fn alone(world: usize) -> Arc<Fake> {
    Arc::new(Fake::new(Arc::new(Hub::new(world)), 0))
}

/// Runs `each` on every rank of a group, on a thread each.
fn group<T: Send>(world: usize, tags: TagCheck, each: impl Fn(&mut Nccl) -> T + Sync) -> Vec<T> {
    let hub = Arc::new(Hub::new(world));
    let (each, hub) = (&each, &hub);
    std::thread::scope(|scope| {
        let start = |rank| {
            scope.spawn(move || {
                let fake = Arc::new(Fake::new(Arc::clone(hub), rank));
                let options = NcclOptions { timeout: 60 * SECOND, ..options(tags) };
                let member = Member { rank, world };
                let calls = Arc::<Fake>::clone(&fake);
                let mut nccl = Nccl::join_through(calls, &id(), member, options, Clock::system()).unwrap();
                let out = each(&mut nccl);
                hub.wait_for_all();
                drop(nccl);
                fake.assert_nothing_left();
                out
            })
        };
        let threads: Vec<_> = (0..world).map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}
