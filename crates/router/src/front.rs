//! Which service a call is for: the one that agents call goes past the table of paths that the others are found in.

use std::convert::Infallible;
use std::task::{Context, Poll};

use futures_util::future::Either;
use hawser_proto::v1::hawser_server::{HawserServer, SERVICE_NAME};
use tonic::body::Body;
use tonic::codegen::{BoxFuture, Service, http};
use tonic::service::Routes;

use crate::service::HawserService;

/// See the head of this file.
#[derive(Clone, Debug)]
pub(crate) struct Front {
    pub(crate) hawser: HawserServer<HawserService>,
    /// Everything else, and what is nothing.
    pub(crate) routes: Routes,
}

impl Service<http::Request<Body>> for Front {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future =
        Either<BoxFuture<Self::Response, Infallible>, <Routes as Service<http::Request<Body>>>::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        // The other one is always ready.
        Service::<http::Request<Body>>::poll_ready(&mut self.routes, cx)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        if is_hawser(request.uri().path()) {
            Either::Left(self.hawser.call(request))
        } else {
            Either::Right(self.routes.call(request))
        }
    }
}

fn is_hawser(path: &str) -> bool {
    let method = path.strip_prefix('/').and_then(|path| path.strip_prefix(SERVICE_NAME));
    method.is_some_and(|method| method.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_methods_of_the_service_are_its_own() {
        assert!(is_hawser("/hawser.v1.Hawser/Generate") && is_hawser("/hawser.v1.Hawser/"));
        for other in [
            "",
            "/",
            "/hawser.v1.Hawser",
            "hawser.v1.Hawser/Generate",
            "/hawser.v1.HawserX/Y",
            "/hawser.v1.Store/Claim",
        ] {
            assert!(!is_hawser(other), "{other}");
        }
    }
}
