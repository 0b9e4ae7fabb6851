//! The demo's cluster: a router and worker groups as child processes of this one.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

/// Memory of each group's KV pool: some 11,000 tokens of the demo model.
const POOL_MIB: &str = "256";
/// Longest wait for a process to say that it is ready.
const READY_LIMIT: Duration = Duration::from_secs(120);
/// Longest wait for a process that was asked to stop.
const STOP_LIMIT: Duration = Duration::from_secs(20);

/// How the children are started.
#[derive(Clone, Debug)]
pub struct Setup {
    pub model: PathBuf,
    pub groups: Vec<String>,
    pub threads: usize,
}

/// One child process. It is killed when this goes out of scope.
#[derive(Debug)]
struct Part {
    name: String,
    child: Child,
}

/// A running router and its groups.
#[derive(Debug)]
pub struct Cluster {
    uri: String,
    router: Part,
    groups: Vec<Part>,
}

impl Cluster {
    /// Starts everything and waits until every group has joined.
    pub async fn start(setup: &Setup) -> anyhow::Result<Self> {
        let router_args = ["router", "--listen", "127.0.0.1:0"].map(str::to_owned).to_vec();
        let (router, uri) = Part::start("router", router_args, "listens on ").await?;
        let mut cluster = Self { uri, router, groups: Vec::new() };
        for name in &setup.groups {
            let model = setup.model.display().to_string();
            let threads = setup.threads.to_string();
            let args = ["worker", "--group", name, "--router", &cluster.uri, "--model", &model];
            let sizes = ["--threads", &threads, "--kv-memory-mib", POOL_MIB];
            let args = args.iter().chain(&sizes).map(|&text| text.to_owned()).collect();
            let (group, _) = Part::start(name, args, "serves at ").await?;
            cluster.groups.push(group);
        }
        Ok(cluster)
    }

    pub fn uri(&self) -> &str {
        &self.uri
    }

    /// Asks the group's process to stop (SIGTERM) and waits for its end.
    pub async fn stop_group(&mut self, name: &str) -> anyhow::Result<()> {
        let Some(index) = self.groups.iter().position(|part| part.name == name) else {
            bail!("group {name} was not started here");
        };
        self.groups.swap_remove(index).stop().await
    }

    /// Stops everything, groups first.
    pub async fn stop(self) -> anyhow::Result<()> {
        for group in self.groups {
            group.stop().await?;
        }
        self.router.stop().await
    }
}

impl Part {
    /// Starts `hawser` with `args` and reads its output until a line says where it is, after `mark`.
    async fn start(name: &str, args: Vec<String>, mark: &str) -> anyhow::Result<(Self, String)> {
        let program = std::env::current_exe().context("cannot find the path of this program")?;
        let mut child = Command::new(program)
            .args(args)
            .args(["--log", "error"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        let output = child.stdout.take().context("the child has no output")?;
        let mut lines = BufReader::new(output).lines();
        let found = tokio::time::timeout(READY_LIMIT, address(&mut lines, mark)).await;
        let Some(uri) = found.with_context(|| format!("{name} was not ready in {READY_LIMIT:?}"))?? else {
            let status = child.wait().await.context("cannot wait for a child")?;
            bail!("{name} ended before it was ready ({status}); its message is above");
        };
        // Nobody reads on; a closed pipe is no error to the child.
        drop(lines);
        Ok((Self { name: name.to_owned(), child }, uri))
    }

    async fn stop(mut self) -> anyhow::Result<()> {
        if let Some(pid) = self.child.id() {
            // The shell's own `kill` is everywhere; this crate has no unsafe code to call the kernel with.
            let asked = Command::new("sh").args(["-c", "kill -TERM \"$0\"", &pid.to_string()]).status().await;
            asked.context("cannot run sh")?;
        }
        let ended = tokio::time::timeout(STOP_LIMIT, self.child.wait()).await;
        ended.with_context(|| format!("{} did not stop in {STOP_LIMIT:?}", self.name))??;
        Ok(())
    }
}

/// The first word after `mark` in the first line that has it; `None` at the end of the output.
async fn address(lines: &mut Lines<BufReader<ChildStdout>>, mark: &str) -> anyhow::Result<Option<String>> {
    while let Some(line) = lines.next_line().await.context("cannot read a child's output")? {
        if let Some(word) = line.split_once(mark).and_then(|(_, rest)| rest.split_whitespace().next()) {
            return Ok(Some(word.to_owned()));
        }
    }
    Ok(None)
}
