//! Models and their text: what any group that serves a model can answer.

use std::collections::BTreeMap;

use futures_util::{StreamExt as _, stream};
use hawser_proto::{convert, fault, v1};
use tonic::{Request, Response};
use tracing::debug;

use super::HawserService;
use crate::attempts::Replay;
use crate::deadline::Deadline;
use crate::error::RouteError;
use crate::place::{Call, To};
use crate::view::Target;

/// Models asked about at the same time.
const FAN_OUT: usize = 16;

impl HawserService {
    pub(super) async fn models(
        &self,
        request: &Request<v1::ListModelsRequest>,
    ) -> Result<v1::ListModelsResponse, RouteError> {
        let caller = self.caller(request)?;
        let deadline = self.call_deadline(request);
        let _permit = self.admission.enter(&caller, deadline).await?;
        let mut groups: BTreeMap<String, u32> = BTreeMap::new();
        for group in self.placer.view.groups() {
            *groups.entry(group.model).or_default() += 1;
        }
        let models = groups.into_iter().map(|(name, groups)| self.model(name, groups, deadline));
        // In the order of their names, whoever answers first.
        let models = stream::iter(models).buffered(FAN_OUT).collect().await;
        Ok(v1::ListModelsResponse { models })
    }

    /// What a group says about its model; just the name and the number of groups where none answers.
    async fn model(&self, name: String, groups: u32, deadline: Deadline) -> v1::ModelInfo {
        let call = Call {
            session: None,
            model: name.clone(),
            prefix: None,
            to: To::Group,
            replay: Replay::Safe,
            deadline,
        };
        let ask = |target: Target| async move {
            let message = self.wire(v1::DescribeModelRequest {}, deadline);
            let described = self.client(&target)?.describe_model(message).await;
            described.map(Response::into_inner).map_err(|status| fault(&status))
        };
        let known = match self.placer.place(&call, ask).await {
            Ok((described, ..)) => described.model.unwrap_or_default(),
            Err(error) => {
                debug!(model = %name, %error, "no group described its model");
                v1::ModelInfo::default()
            }
        };
        v1::ModelInfo { name, groups, ..known }
    }

    pub(super) async fn tokens(
        &self,
        request: Request<v1::TokenizeRequest>,
    ) -> Result<v1::TokenizeResponse, RouteError> {
        let caller = self.caller(&request)?;
        let deadline = self.call_deadline(&request);
        let request = request.into_inner();
        convert::optional_model(&request.model)?;
        let _permit = self.admission.enter(&caller, deadline).await?;
        let model = request.model.clone();
        let call = Call { session: None, model, prefix: None, to: To::Group, replay: Replay::Safe, deadline };
        let ask = |target: Target| {
            let message = self.wire(request.clone(), deadline);
            async move {
                let tokens = self.client(&target)?.tokenize(message).await;
                tokens.map(Response::into_inner).map_err(|status| fault(&status))
            }
        };
        Ok(self.placer.place(&call, ask).await?.0)
    }
}
