//! Groups, for operators: those that are registered, those that left a while ago, and how their ranks are.

use hawser_common::group::GroupRecord;
use hawser_proto::{fault, v1};
use tonic::{Request, Response};
use tracing::debug;

use super::{HawserService, LATE, PATIENCE, silence};
use crate::error::RouteError;

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
            let mut leader = self.upstream.client(&group.address).map_err(silence)?;
            let answer = leader.describe_ranks(message).await.map_err(|status| silence(fault(&status)))?;
            Ok::<_, String>(Response::into_inner(answer).state)
        };
        let answer = deadline.bound(&self.placer.clock, ask).await.unwrap_or_else(|| Err(LATE.to_owned()));
        let (state, silence) = match answer {
            Ok(state) => (state, String::new()),
            Err(reason) => {
                debug!(group = %group.id, %reason, "the leader did not describe its ranks");
                (None, reason)
            }
        };
        Ok(v1::DescribeGroupResponse { group: Some(group), state, silence })
    }
}

fn departed_group(record: &GroupRecord) -> v1::Group {
    v1::Group { departed: true, ..record.into() }
}
