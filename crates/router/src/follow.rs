//! The task that follows the store: watch, apply, watch again.
//!
//! While the store cannot be watched the view stays as it is, so that turns of known sessions go on.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use hawser_placement::{Change, Store, Watch};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::metrics::RouterMetrics;
use crate::upstream::Upstream;
use crate::view::View;

const FIRST_BACKOFF: Duration = Duration::from_millis(100);
const MAX_BACKOFF: Duration = Duration::from_secs(2);

/// Feeds `view` until `stop`.
pub(crate) async fn follow(
    store: Arc<dyn Store>,
    view: Arc<View>,
    upstream: Arc<Upstream>,
    metrics: RouterMetrics,
    stop: CancellationToken,
) {
    let mut failures = 0u32;
    loop {
        // Dropping a watch, or a call for one, leaves nothing behind.
        let watched = tokio::select! {
            () = stop.cancelled() => return,
            watched = store.watch() => watched,
        };
        let error = match watched {
            Err(error) => Some(error),
            Ok(watch) => {
                if failures > 0 {
                    info!("the placement store answers again");
                }
                failures = 0;
                tokio::select! {
                    () = stop.cancelled() => return,
                    error = drain(watch, &view, &upstream, &metrics) => error,
                }
            }
        };
        metrics.lost_the_store();
        if failures == 0 {
            let reason = error.map_or_else(|| "the watch ended".to_owned(), |error| error.to_string());
            warn!(%reason, "lost the placement store; known sessions go on");
        }
        let wait = FIRST_BACKOFF * 2u32.saturating_pow(failures.min(10));
        failures += 1;
        // A random part of up to half, so that routers do not come back all at once.
        let wait = wait.min(MAX_BACKOFF).mul_f64(1.0 - rand::random::<f64>() / 2.0);
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(wait) => {}
        }
    }
}

/// Applies updates until the watch ends, and says why it did.
async fn drain(
    mut watch: Watch,
    view: &View,
    upstream: &Upstream,
    metrics: &RouterMetrics,
) -> Option<hawser_placement::StoreError> {
    while let Some(update) = watch.next().await {
        match update {
            Ok(update) => {
                if matches!(update.change, Change::Snapshot(_)) {
                    metrics.listed();
                }
                if view.apply(update) {
                    upstream.keep(&view.groups());
                }
            }
            Err(error) => return Some(error),
        }
    }
    None
}
