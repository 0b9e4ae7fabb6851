//! Groups, for operators: those that are registered, those that left a while ago, and how their ranks are.

use std::time::Duration;

use hawser_common::group::GroupRecord;
use hawser_proto::v1;
use tonic::{Request, Response};
use tracing::debug;

use super::HawserService;
use crate::error::RouteError;

/// A leader that has not answered by then is shown without its ranks.
const PATIENCE: Duration = Duration::from_secs(2);

impl HawserService {
    pub(super) fn groups(&self, request: &v1::ListGroupsRequest) -> v1::ListGroupsResponse {
        let departed = if request.departed { self.placer.view.departed() } else { Vec::new() };
        let groups = self.placer.view.groups();
        let groups = groups.iter().map(Into::into).chain(departed.iter().map(departed_group));
        v1::ListGroupsResponse { groups: groups.collect() }
    }

    pub(super) async fn group(
        &self,
        request: Request<v1::DescribeGroupRequest>,
    ) -> Result<v1::DescribeGroupResponse, RouteError> {
        self.auth.operator(request.metadata())?;
        let caller = self.caller(&request)?;
        let deadline = self.call_deadline(&request).at_most(PATIENCE, &self.placer.clock);
        let name = request.into_inner().group;
        let _permit = self.admission.enter(&caller, deadline).await?;
        let named = |records: Vec<GroupRecord>| records.into_iter().find(|record| record.id.as_str() == name);
        let registered = named(self.placer.view.groups());
        let group = match (&registered, named(self.placer.view.departed())) {
            (Some(record), _) => v1::Group::from(record),
            (None, Some(record)) => departed_group(&record),
            (None, None) => return Err(RouteError::UnknownGroup { name }),
        };
        let ask = async {
            let message = self.wire(v1::DescribeRanksRequest {}, deadline);
            let mut leader = self.upstream.client(&group.address).map_err(|fault| fault.message)?;
            let answer =
                leader.describe_ranks(message).await.map_err(|status| status.message().to_owned())?;
            Ok::<_, String>(Response::into_inner(answer).state)
        };
        let state = match deadline.bound(&self.placer.clock, ask).await {
            Some(Ok(state)) => state,
            Some(Err(reason)) => {
                debug!(group = %group.id, %reason, "the leader did not describe its ranks");
                None
            }
            None => None,
        };
        Ok(v1::DescribeGroupResponse { group: Some(group), state })
    }
}

fn departed_group(record: &GroupRecord) -> v1::Group {
    v1::Group { departed: true, ..record.into() }
}
