//! The page `/metrics`: everything that is measured, in the text that Prometheus reads.
//!
//! One request is answered from memory; more than a few at once are refused.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hawser_common::tasks::Tasks;
use prometheus::{Registry, TextEncoder};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tracing::error;

/// Requests that are answered at once.
const MAX_AT_ONCE: usize = 4;

#[derive(Clone)]
struct Page {
    registry: Registry,
    places: Arc<Semaphore>,
}

/// Serves the page until `tasks` stop, and says where.
pub(crate) async fn serve(
    listen: SocketAddr,
    registry: Registry,
    tasks: &Tasks,
) -> std::io::Result<SocketAddr> {
    let listener = TcpListener::bind(listen).await?;
    let address = listener.local_addr()?;
    let page = Page { registry, places: Arc::new(Semaphore::new(MAX_AT_ONCE)) };
    let app = Router::new().route("/metrics", get(show)).with_state(page);
    let stopping = tasks.stopping();
    tasks.spawn(async move {
        let served = axum::serve(listener, app).with_graceful_shutdown(stopping.cancelled_owned()).await;
        if let Err(failure) = served {
            error!(%failure, "the page of metrics is not served any more");
        }
    });
    Ok(address)
}

async fn show(State(page): State<Page>) -> Response {
    let Ok(place) = page.places.try_acquire_owned() else {
        return (StatusCode::SERVICE_UNAVAILABLE, "too many at once\n").into_response();
    };
    let registry = page.registry;
    let text = tokio::task::spawn_blocking(move || {
        let text = TextEncoder::new().encode_to_string(&registry.gather());
        drop(place);
        text
    });
    match text.await {
        Ok(Ok(text)) => ([(header::CONTENT_TYPE, prometheus::TEXT_FORMAT)], text).into_response(),
        Ok(Err(failure)) => {
            error!(%failure, "metrics cannot be written as text");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}
